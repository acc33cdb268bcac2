"""What a reader is, and what it reads from."""

import hashlib
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import msgspec

from loadgen.errors import TraceError
from loadgen.traces.row import Dropped, Note, TraceRow


class Source:
    """A file, or a folder's files by name (hidden ones and folders in it are left out).

    Raises:
        TraceError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_folder = path.is_dir()
        self.files = sorted(self._names(), key=lambda file: file.name)

    @cached_property
    def sha256(self) -> str:
        """See Trace.sha256."""
        if not self.is_folder:
            return hashlib.sha256(_content(self.path)).hexdigest()
        lines = [f"{hashlib.sha256(_content(file)).hexdigest()}  {file.name}\n" for file in self.files]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @cached_property
    def lines(self) -> list[str]:
        """Of the file; of a folder there are none."""
        return [] if self.is_folder else text(self.path).split("\n")

    @property
    def first_line(self) -> str:
        return self.lines[0] if self.lines else ""

    def numbered(self) -> Iterator[tuple[str, str]]:
        """(`file:line`, text) of each line that is not blank."""
        for number, line in enumerate(self.lines, 1):
            if line.strip():
                yield f"{self.path}:{number}", line

    def _names(self) -> list[Path]:
        if not self.is_folder:
            return [self.path]
        return [file for file in self.path.iterdir() if file.is_file() and not file.name.startswith(".")]


class ReadOptions(msgspec.Struct, frozen=True):
    """What a reader is told besides the file."""

    block_size: int | None = None
    """Tokens that a hash id stands for; None: as the format says."""
    window_s: tuple[float, float] | None = None
    """(first, last) second of a generated day that is taken; None: the whole day."""
    seed: int = 0
    """Of what a reader generates."""


class Format(msgspec.Struct, frozen=True):
    """One way to write a trace."""

    name: str
    looks: str
    """How to know one, in words."""
    matches: Callable[[Source], bool]
    """True if the source is of the format; odd content is no error, only a file that cannot be read."""
    read: Callable[[Source, ReadOptions], Iterator[TraceRow | Dropped | Note]]
    """Its rows in file order. Raises TraceError, naming file, line and field."""
    is_timed: bool = True
    has_blocks: bool = False
    """A block size means something to it; to be told one else is an error."""
    is_generated: bool = False
    """A window of the day means something to it; to be told one else is an error."""


def text(path: Path) -> str:
    """A file's text without its byte order mark.

    Raises:
        TraceError: it cannot be read, or is not UTF-8.
    """
    try:
        return _content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 text (byte {error.start})") from error


def json_object(line: str) -> dict[str, object]:
    """The JSON object in `line`; an empty one if it holds anything else."""
    try:
        value = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
