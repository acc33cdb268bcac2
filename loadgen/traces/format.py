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
        TraceError: what is asked for cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_folder = path.is_dir()
        self.files = sorted(self._files(), key=lambda file: file.name)
        self._digests: dict[str, str] = {}

    @property
    def sha256(self) -> str:
        """See Trace.sha256."""
        digests = sorted(self._digests.items())
        if len(digests) == 1:
            return digests[0][1]
        return hashlib.sha256("".join(f"{digest}  {name}\n" for name, digest in digests).encode()).hexdigest()

    def text(self, path: Path) -> str:
        """A file's text without its byte order mark; the file counts as read."""
        try:
            content = path.read_bytes()
            self._digests[path.name] = hashlib.sha256(content).hexdigest()
            return content.decode("utf-8-sig")
        except OSError as error:
            raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise TraceError(f"{path}: not UTF-8 text (byte {error.start})") from error

    @cached_property
    def lines(self) -> list[str]:
        """Of the file; of a folder there are none."""
        return [] if self.is_folder else self.text(self.path).split("\n")

    @property
    def first_line(self) -> str:
        return self.lines[0] if self.lines else ""

    def numbered(self) -> Iterator[tuple[str, str]]:
        """(`file:line`, text) of each line that is not blank."""
        for number, line in enumerate(self.lines, 1):
            if line.strip():
                yield f"{self.path}:{number}", line

    def _files(self) -> list[Path]:
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


def json_object(line: str) -> dict[str, object]:
    """The JSON object in `line`; an empty one if it holds anything else."""
    try:
        value = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}
