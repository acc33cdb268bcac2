"""The server's queues while the run goes on, from its /metrics, if they are this project's."""

import asyncio
import re
from collections.abc import Callable

import aiohttp
import msgspec

from loadgen.errors import ServerError
from loadgen.scrape import fetch

_EVERY_S = 0.5
_GAUGES = re.compile(
    r'^stageline_(?:inbox_depth\{stage="(?P<stage>[^"]+)"\}|requests_(?P<state>waiting|running))'
    r" (?P<value>\S+)",
    re.MULTILINE,
)
"""Found without reading the rest: a parser of the whole page would be a hole of 5 ms in every time stamp."""


class QueueSample(msgspec.Struct, frozen=True):
    at_s: float
    waiting: float
    """Requests that wait for a place on the device."""
    running: float
    inboxes: dict[str, float]
    """Messages that wait for each stage."""


async def sample_queues(url: str, clock: Callable[[], float], samples: list[QueueSample]) -> None:
    """Appends a sample each half second until cancelled; ends by itself where there is nothing to sample."""
    async with aiohttp.ClientSession() as session:
        while (sample := await _sample(session, url, clock)) is None or sample.inboxes:
            if sample is not None:
                samples.append(sample)
            await asyncio.sleep(_EVERY_S)


def read_sample(text: str, at_s: float) -> QueueSample:
    """From the text of a /metrics page; without inboxes if it is not this project's."""
    found = list(_GAUGES.finditer(text))
    states = {match["state"]: float(match["value"]) for match in found if match["state"]}
    inboxes = {match["stage"]: float(match["value"]) for match in found if match["stage"]}
    return QueueSample(at_s, states.get("waiting", 0.0), states.get("running", 0.0), inboxes)


async def _sample(session: aiohttp.ClientSession, url: str, clock: Callable[[], float]) -> QueueSample | None:
    """Without inboxes where there are none to see; None if the server is too busy: a gap in the report."""
    try:
        text = await fetch(session, url)
    except ServerError:
        return None
    return read_sample(text or "", clock())
