"""BurstGPT (Wang et al., KDD 2025): CSV by column name, for the releases place the columns differently.

`Timestamp` is in seconds. A failed request has no response tokens (often no request tokens either).
Releases with `Session ID` and `Elapsed time` (seconds that the answer took) are conversations: a request
follows the one before it in its session, after the time that the user took.
"""

from collections.abc import Iterator

from loadgen.traces.columns import Fields, header, read_columns
from loadgen.traces.format import Format, ReadOptions, Source
from loadgen.traces.row import NS_PER_S, Dropped, TraceRow, usable
from loadgen.traces.sessions import Sessions

_TIME, _INPUT, _OUTPUT = "Timestamp", "Request tokens", "Response tokens"
_SESSION, _ELAPSED = "Session ID", "Elapsed time"


def matches(source: Source) -> bool:
    return {_TIME, _INPUT, _OUTPUT} <= header(source.first_line)


def read(source: Source, options: ReadOptions) -> Iterator[TraceRow | Dropped]:
    """See Format.read."""
    sessions = Sessions()
    for fields in read_columns(source):
        yield usable(_row(fields, sessions))


def _row(fields: Fields, sessions: Sessions) -> TraceRow:
    at_s, session = fields.number(_TIME), fields.by_name.get(_SESSION) or None
    elapsed_s = fields.number(_ELAPSED) if fields.by_name.get(_ELAPSED) else None
    after, think_s = sessions.follow(session, at_s, elapsed_s)
    return TraceRow(
        round(at_s * NS_PER_S), fields.count(_INPUT), fields.count(_OUTPUT), after=after, think_s=think_s
    )


FORMAT = Format("burstgpt", f"CSV with the columns {_TIME},{_INPUT},{_OUTPUT}", matches, read)
