"""A streamer alone, with a clock set by hand."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pipeline.messages import Open, TextBatch
from pipeline.runtime.testing import ManualClock
from pipeline.runtime.trace import Trace
from pipeline.stages.stream import Stream, StreamOptions
from tests.text_world import Sink, World

MS = 1_000_000


class StreamWorld(World):
    """A streamer with one request, 1, and a clock set by hand."""

    def __init__(self, *, reads: bool = True, **options: Any) -> None:
        self.clock = ManualClock(1000 * MS)
        self.trace = Trace()
        super().__init__(Stream, StreamOptions(**options), clock=self.clock, trace=self.trace)
        self.sink = Sink(reads=reads)

    async def open(self, request_id: int = 1, sink: Sink | None = None) -> Sink:
        sink = sink or self.sink
        await self.stage.handle([Open(request_id, sink, self.clock.now_ns)])
        return sink

    async def rows(self, *rows: tuple[int, str, int, int], **fields: Any) -> None:
        await self.stage.handle([texts(*rows, **fields)])

    async def pass_time(self, ms: float) -> None:
        """Move the clock, and let the timer look at it."""
        self.clock.advance(int(ms * MS))
        self.stage._on_timer()

    def metric(self, line: str) -> bool:
        return line in self.telemetry.render().decode().splitlines()


def texts(*rows: tuple[int, str, int, int], **fields: Any) -> TextBatch:
    columns = [[row[column] for row in rows] for column in range(4)]
    defaults: dict[str, Any] = {
        "started": [],
        "times": [],
        "elapsed_ns": (0,) * 6,
        "token_sent_ns": 0,
        "taken_ns": 0,
        "sent_ns": 0,
    }
    return TextBatch(1, *columns, **(defaults | fields))


def in_world(body: Callable[[StreamWorld], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        world = StreamWorld(**options)
        await world.open()
        await body(world)
        await world.stage.stop()

    asyncio.run(main())
