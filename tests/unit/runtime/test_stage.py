"""What a stage's loop writes down of its own handle()."""

import asyncio
from collections.abc import Sequence

from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import NoOptions, Stage, StageContext
from pipeline.runtime.testing import ManualClock

MS = 1_000_000


class Slow(Stage[int, NoOptions]):
    """Takes so many ms for a batch as its messages add up to, and looks at its own books half way."""

    takes = (int,)

    def __init__(self, ctx: StageContext, clock: ManualClock) -> None:
        super().__init__(ctx, NoOptions())
        self.clock = clock
        self.half_way: list[int] = []

    async def handle(self, batch: Sequence[int]) -> None:
        self.clock.advance(sum(batch) * MS // 2)
        self.half_way.append(self.service.busy_until(self.clock()))
        self.clock.advance(sum(batch) * MS // 2)


def test_the_time_and_the_size_of_each_batch_are_kept() -> None:
    async def main() -> None:
        clock = ManualClock()
        inbox: Inbox[int] = Inbox(8, clock)
        stage = Slow(StageContext("slow", inbox, {}, {}, clock=clock), clock)
        for message in (10, 20, 30):
            assert inbox.offer(message)
        running = asyncio.create_task(stage.run())
        await asyncio.sleep(0)
        assert inbox.offer(4)
        inbox.close()
        await running
        service = stage.service
        assert (service.num_batches, service.num_messages, service.busy_ns) == (2, 4, 64 * MS)
        assert (service.times.count, service.times.total) == (2, 64 * MS)
        assert (service.sizes.count, service.sizes.total) == (2, 4)
        assert stage.half_way == [30 * MS, 62 * MS], "a batch under way counts before its end"
        clock.advance(MS)
        assert service.busy_until(clock()) == 64 * MS

    asyncio.run(main())
