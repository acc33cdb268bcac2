"""Where a result goes: result.json and report.html."""

from pathlib import Path

from loadgen.errors import UsageError
from loadgen.html import render
from loadgen.result import Result, encode, write


def check_places(json: Path | None, out: Path | None) -> None:
    """Makes the folder `out`; to be called before a run, which would be lost for want of a place.

    Raises:
        UsageError: a folder is missing or cannot be made.
    """
    if json is not None and not json.parent.is_dir():
        raise UsageError(f"--json {json}: there is no folder {json.parent}")
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {out}: cannot be made: {error.strerror}") from error


def write_all(result: Result, json: Path | None, out: Path | None) -> None:
    """Raises UsageError if a file cannot be written."""
    content = encode(result)
    if json is not None:
        write(json, content)
    if out is not None:
        write(out / "result.json", content)
        write(out / "report.html", render(result).encode())
