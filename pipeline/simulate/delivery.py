"""When a client sees the tokens of one answer: the streamer's rule (core.coalesce) over their times."""

from bisect import bisect_right
from collections.abc import Sequence

from pipeline.core.coalesce import FlushRule


def writes_ns(times_ns: Sequence[int], rule: FlushRule) -> list[int]:
    """The times of an answer's writes; `times_ns`, ascending, are when its tokens reach the streamer.

    The first token is written at once, and so is all that is pending when the last one comes.
    """
    last = times_ns[0]
    writes, at, end = [last], 1, len(times_ns)
    while at < end:
        due = rule.due_ns(last)
        full = at + rule.max_tokens - 1
        if times_ns[at] >= due:
            last, at = times_ns[at], at + 1
        elif full < end and times_ns[full] < due:
            last, at = times_ns[full], full + 1
        elif times_ns[-1] < due:
            last, at = times_ns[-1], end
        else:
            last, at = due, bisect_right(times_ns, due, at)
        writes.append(last)
    return writes
