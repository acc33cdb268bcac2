"""Readers of recorded traffic. A format is one module with a FORMAT, listed here."""

from pathlib import Path

import msgspec

from loadgen.errors import TraceError, UsageError
from loadgen.traces import (
    azure,
    bailian,
    burstgpt,
    mooncake,
    prompt_files,
    ragpulse,
    servegen,
    sharegpt,
    tracelab,
    weka,
)
from loadgen.traces.format import Format, ReadOptions, Source
from loadgen.traces.row import Blocks, Dropped, Note, Trace, TraceRow

__all__ = ["FORMAT_NAMES", "Blocks", "ReadOptions", "Trace", "TraceRow", "load"]

_FORMATS: tuple[Format, ...] = (
    azure.FORMAT,
    burstgpt.FORMAT,
    tracelab.FORMAT,
    ragpulse.FORMAT,
    bailian.FORMAT,
    mooncake.FORMAT,
    weka.FORMAT,
    servegen.FORMAT,
    prompt_files.FORMAT,
    sharegpt.FORMAT,
)
FORMAT_NAMES = tuple(form.name for form in _FORMATS)
_PLAIN = ReadOptions()


def load(path: Path, form: str | None = None, options: ReadOptions = _PLAIN) -> Trace:
    """The trace at `path`; its format is told from its content, never from its name, unless `form` names it.

    Raises:
        UsageError: `form` is no format's name, or an option means nothing to the format.
        TraceError: no such file, no known format, a wrong field, or no row that can be replayed.
    """
    source = Source(path)
    reader = _detect(source) if form is None else _named(form)
    _check(options, reader)
    yielded: list[TraceRow | Dropped] = []
    notes = [] if reader.is_timed else ["the file has no times: all are due at once, but for --timing"]
    for item in reader.read(source, options):
        if isinstance(item, Note):
            notes.append(item.text)
        else:
            yielded.append(item)
    dropped = [item for item in yielded if isinstance(item, Dropped)]
    trace = Trace(path, reader.name, source.sha256, _in_order(yielded), dropped, notes, reader.is_timed)
    if not trace.rows:
        raise TraceError(
            f"{path}: no row can be replayed (dropped: {trace.dropped or 'none, it has no rows'})"
        )
    return trace


def _in_order(yielded: list[TraceRow | Dropped]) -> list[TraceRow]:
    """The usable rows by arrival, equal times in file order, none before the row it follows.

    A row that follows a dropped one follows that one's forerunner.
    """
    kept: list[int | None] = []  # of each yielded: itself, or who takes its place
    times: dict[int, int] = {}
    for number, item in enumerate(yielded):
        row = _row(item)
        before = None if row.after is None else kept[row.after]
        if isinstance(item, Dropped):
            kept.append(before)
        else:
            kept.append(number)
            times[number] = row.at_ns if before is None else max(row.at_ns, times[before])
    order = sorted(times, key=times.__getitem__)
    place = {number: index for index, number in enumerate(order)}
    rows = (_row(yielded[number]) for number in order)
    return [_placed(row, times[number], kept, place) for number, row in zip(order, rows, strict=True)]


def _row(item: TraceRow | Dropped) -> TraceRow:
    return item.row if isinstance(item, Dropped) else item


def _placed(row: TraceRow, at_ns: int, kept: list[int | None], place: dict[int, int]) -> TraceRow:
    """`row` with its forerunner as an index into the usable rows, and not before it."""
    if row.after is None:
        return row
    before = kept[row.after]
    return msgspec.structs.replace(
        row,
        at_ns=at_ns,
        after=None if before is None else place[before],
        think_s=None if before is None else row.think_s,
        adds_turn=row.adds_turn and before is not None,
    )


def _detect(source: Source) -> Format:
    if not source.is_folder and source.lines == [""]:
        raise TraceError(f"{source.path}: the file is empty")
    for reader in _FORMATS:
        if reader.matches(source):
            return reader
    what = f"it starts with {source.first_line[:80]!r}" if source.first_line else "a folder of other files"
    known = "".join(f"\n  {form.name}: {form.looks}" for form in _FORMATS)
    raise TraceError(
        f"{source.path}:1: not a known trace ({what}). Known, by content (--format NAME forces):{known}"
    )


def _check(options: ReadOptions, reader: Format) -> None:
    if options.block_size is not None and not reader.has_blocks:
        raise UsageError(f"--block-size means nothing for {reader.name}: it has no blocks of one size")
    if options.window_s is not None and not reader.is_generated:
        raise UsageError(f"--window means nothing for {reader.name}: it is recorded, not generated")


def _named(name: str) -> Format:
    for reader in _FORMATS:
        if reader.name == name:
            return reader
    raise UsageError(f"--format {name}: unknown; known: {', '.join(FORMAT_NAMES)}")
