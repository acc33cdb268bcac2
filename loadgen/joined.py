"""Where the time went: the server's own account of a request beside what its client saw.

The server's segments add up to its end-to-end time. What the client saw beyond that is the way there and
back and the client itself; what it waited before the request was sent is the generator's fault.
"""

import aiohttp
import msgspec
import numpy as np

from loadgen.record import Record

LATE = "generator: late"
REMAINDER = "network + client"
_ASK_S = 10.0


class _About(msgspec.Struct):
    name: str = ""


class Breakdown(msgspec.Struct, frozen=True):
    """The parts of one request's end-to-end time, or of the mean's, in milliseconds."""

    title: str
    e2e_ms: float
    """From the due time to the last token; the parts add up to it."""
    parts_ms: dict[str, float]
    """LATE, then the server's segments in order, then REMAINDER."""


async def says_timings(url: str) -> bool:
    """True if the server at `url` is this project's, which can say where a request's time went.

    No other is ever asked: unknown fields are refused by some.
    """
    timeout = aiohttp.ClientTimeout(total=_ASK_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{url}/") as response:
            about = msgspec.json.decode(await response.read(), type=_About)
    except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError, UnicodeDecodeError):
        return False
    return about.name == "stageline"


def breakdowns(records: list[Record]) -> list[Breakdown]:
    """Of the mean, and of the requests whose E2E is the p50 and the p99; empty if no server said.

    The p50 request is a real one, of nearest rank, and not a mix of several.
    """
    joined = [record for record in records if record.is_finished and record.server_timings is not None]
    joined.sort(key=lambda record: record.e2e_s or 0.0)
    if not joined:
        return []
    of_each = [_parts_ms(record) for record in joined]
    names = list(dict.fromkeys(name for parts in of_each for name in parts))
    mean = {name: float(np.mean([parts.get(name, 0.0) for parts in of_each])) for name in names}
    found = [Breakdown(f"mean of {len(joined)}", sum(mean.values()), mean)]
    for percent in (50, 99):
        rank = round(percent / 100 * (len(joined) - 1))
        title = f"p{percent}: request {joined[rank].index}"
        found.append(Breakdown(title, sum(of_each[rank].values()), of_each[rank]))
    return found


def _parts_ms(record: Record) -> dict[str, float]:
    timings, raw_s = record.server_timings, record.raw_e2e_s
    if timings is None or raw_s is None:
        return {}
    late_ms = 1000 * (record.lateness_s or 0.0)
    return {LATE: late_ms, **timings.segments_ms, REMAINDER: 1000 * raw_s - timings.e2e_ms}
