"""Answers: whether two sides say the same of the same input. Nothing is timed here."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from pipeline.bench.compare.input import Input
from pipeline.bench.compare.side import Side, reason_of
from pipeline.bench.stand import Feed, Stand, running
from pipeline.errors import ConfigError, StagelineError
from pipeline.runtime.comparison import Comparison, Difference
from pipeline.runtime.heard import Hear, heard
from pipeline.runtime.supervisor import AnyStage

ALL = 1 << 30
PATIENCE_S = 30.0
MAX_SHOWN = 5


class Answers(msgspec.Struct, frozen=True):
    """How far two sides agree."""

    equivalence: str
    """What must be alike, as a's class declares it."""
    messages_a: int
    messages_b: int
    """What the sides have given; what sinks were given counts as messages."""
    num_differences: int
    differences: list[Difference]
    """The first MAX_SHOWN."""
    failure: str
    """Why b did not come to the end; empty: it did."""

    @property
    def are_alike(self) -> bool:
        return not self.num_differences and not self.failure


async def compare_answers(a: Side, b: Side, fed: Input, patience_s: float = PATIENCE_S) -> Answers:
    """Run both to the end, one after the other. Raises StagelineError if a does not come there.

    Args:
        patience_s: a side that gives nothing for so long while it should has lost something.
    """
    equivalence = a.stage_class.equivalence
    comparison = Comparison(equivalence)
    failure = await _run(a, fed.answers(), comparison.a, patience_s)
    if failure:
        raise StagelineError(f"{a} has nothing to compare with: {failure}")
    failure = await _run(b, fed.answers(), comparison.b, patience_s)
    if not comparison.num_messages["a"]:
        raise StagelineError(f"{a} has given nothing, so there is nothing to compare")
    differences = comparison.differences()
    return Answers(
        equivalence.what,
        comparison.num_messages["a"],
        comparison.num_messages["b"],
        len(differences),
        differences[:MAX_SHOWN],
        failure,
    )


async def _run(side: Side, feed: Feed, hear: Hear, patience_s: float) -> str:
    """Why it did not come to the end; empty: it did."""
    limit = asyncio.timeout(None)
    heard_feed = _HeardFeed(feed, limit, patience_s, hear)
    try:
        async with limit:
            stand = side.stand(trace_points=1)
            async with running(stand, heard_feed, lambda stage: _hearing(stage, heard_feed.said)):
                heard_feed.wait()
                await heard_feed.send(stand, ALL)
    except TimeoutError:
        return f"it has given nothing more for {patience_s:g} s, though it was owed"
    except ConfigError:
        raise
    except Exception as error:  # it may be anything: the stage is what is tried here
        return f"it has failed: {reason_of(error)}"
    return ""


def _hearing(stage: AnyStage, hear: Hear) -> Callable[[Sequence[Any]], Awaitable[None]]:
    """Its handle(), with sinks that tell."""

    async def handle(batch: Sequence[Any]) -> None:
        await stage.handle([heard(message, hear) for message in batch])

    return handle


class _HeardFeed(Feed):
    """Another feed, of which all that the stage says is told, and puts off the time limit."""

    def __init__(self, feed: Feed, limit: asyncio.Timeout, patience_s: float, hear: Hear) -> None:
        super().__init__()
        self._feed = feed
        self._limit = limit
        self._patience_s = patience_s
        self._hear = hear

    def wait(self) -> None:
        self._limit.reschedule(asyncio.get_running_loop().time() + self._patience_s)

    def said(self, message: object) -> None:
        if not self._limit.expired():
            self.wait()
        self._hear(message)

    async def send(self, stand: Stand, num_messages: int) -> None:
        await self._feed.send(stand, num_messages)

    def gave(self, stand: Stand, message: object) -> None:
        self.said(message)
        self._feed.gave(stand, message)

    def end(self, stand: Stand) -> None:
        self._feed.end(stand)

    def close(self) -> None:
        self._feed.close()
