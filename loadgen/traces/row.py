"""What every trace format becomes."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

NS_PER_S = 1_000_000_000

OUTPUT_TOKENS = 256
"""Asked of a row whose file gives no output length."""


class Message(msgspec.Struct, frozen=True):
    """One message of a chat."""

    role: str
    content: str


class Blocks(msgspec.Struct, frozen=True):
    """What a prompt shares with others: equal ids in one scope are equal tokens, at any place."""

    scope: str
    """"" for ids of the whole trace; a file's name where ids mean something only within that file."""
    ids: tuple[int, ...]
    sizes: int | tuple[int, ...]
    """Tokens of every block, or of each. The prompt's length cuts the last; past the last it is unshared."""

    def spans(self, num_tokens: int) -> Iterator[tuple[int, int]]:
        """(id, tokens) of each block as far as a prompt of `num_tokens` reaches."""
        sizes = (self.sizes,) * len(self.ids) if isinstance(self.sizes, int) else self.sizes
        for hash_id, size in zip(self.ids, sizes, strict=True):
            if num_tokens <= 0:
                return
            yield hash_id, min(size, num_tokens)
            num_tokens -= size


Content = Blocks | str | tuple[Message, ...]
"""Of a prompt: its shared blocks, its very text, or a chat."""


class TraceRow(msgspec.Struct, frozen=True):
    """One recorded request. Token counts are the recorded tokenizer's, not the tested model's."""

    at_ns: int
    """When it arrived, on the trace's own clock; in a Trace never before the row it follows."""
    num_input: int | None
    """None: `content` is the text, and how many tokens that is only the server knows."""
    num_output: int
    content: Content | None = None
    """None: any text of the recorded length, shared with no other prompt."""
    after: int | None = None
    """The row whose answer this one follows. In a reader: counted over all it yields (rows and dropped);
    in a Trace: index in `rows`, always an earlier one."""
    think_s: float | None = None
    """From the end of that answer to this request; None where only arrival times are recorded: then it is
    sent when it is due, but never before that answer has ended."""
    adds_turn: bool = False
    """`content` is only the new user turn: what is sent is the chat so far, with the answer given, and it."""


class Dropped(msgspec.Struct, frozen=True):
    """A row that cannot be replayed, and why. It is counted and described, never sent."""

    reason: str
    row: TraceRow


class Note(msgspec.Struct, frozen=True):
    """What a user must know of this file's replay."""

    text: str


class Trace(msgspec.Struct, frozen=True):
    """A file's (or folder's) usable rows in order of arrival, and what became of the others."""

    path: Path
    format: str
    sha256: str
    """Of the file; of several that were read: of what `sha256sum` prints of them, sorted by name."""
    rows: list[TraceRow]
    dropped_rows: list[Dropped]
    notes: list[str]
    is_timed: bool
    """False: the file has no times, and every `at_ns` is 0."""

    @property
    def num_read(self) -> int:
        return len(self.rows) + len(self.dropped_rows)

    @property
    def dropped(self) -> dict[str, int]:
        """Reason to number of rows."""
        counts: dict[str, int] = {}
        for dropped in self.dropped_rows:
            counts[dropped.reason] = counts.get(dropped.reason, 0) + 1
        return counts


def usable(row: TraceRow) -> TraceRow | Dropped:
    """`row`, or Dropped if a length is zero: that is the formats' way to log a failure."""
    if row.num_output == 0:
        return Dropped("output length 0", row)
    if row.num_input == 0:
        return Dropped("input length 0", row)
    return row
