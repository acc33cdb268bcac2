"""One target under atheris (libFuzzer): python -m tests.fuzz.run TARGET SECONDS.

Ends with a traceback and a failing status at the first exception that is not declared; libFuzzer writes the
bytes that caused it to a file crash-... in the working directory.
"""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["pipeline"]):
    from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
MAX_BYTES = 4096


def main(name: str, seconds: int) -> None:
    """Does not return: libFuzzer ends the process. New inputs go to a folder that is thrown away."""
    with tempfile.TemporaryDirectory() as found:
        options = [
            f"-max_total_time={seconds}",
            f"-max_len={MAX_BYTES}",
            "-timeout=10",
            "-rss_limit_mb=2048",
            "-print_final_stats=1",
        ]
        atheris.Setup([sys.argv[0], *options, "-verbosity=0", found, str(CORPUS / name)], TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
