"""Whatever is swapped when, and however it fails: what comes out is what comes out of one stage alone."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.runtime.stage import StageContext
from pipeline.runtime.swapped import Ending
from tests.unit.runtime.swap_world import QUICK, Counter, Failing, Number, counting, crash, hang, totals

BOUNDS = msgspec.structs.replace(QUICK, batch_s=0.02, trial_s=0.0, trial_batches=4, max_trial_s=0.03)


class Swap(NamedTuple):
    fails: Callable[[], Any] | None
    at: int

    def make(self, ctx: StageContext) -> Counter:
        return Counter(ctx, "new") if self.fails is None else Failing(ctx, self.fails, self.at)

    def may_end_as(self, ending: Ending) -> bool:
        """One that would fail later than its trial is long is trusted, and must not be fed any more."""
        return ending is Ending.SWAPPED if self.fails is None else ending is Ending.ROLLED_BACK


SWAPS = st.builds(Swap, st.sampled_from([None, crash, hang]), st.integers(0, 2))
SENDS = st.integers(1, 30)


@settings(max_examples=15, deadline=None)
@given(script=st.lists(st.one_of(SENDS, SWAPS), min_size=1, max_size=6), num_seats=st.sampled_from([1, 1, 3]))
def test_what_comes_out_is_that_of_one_stage(script: list[int | Swap], num_seats: int) -> None:
    async def main() -> None:
        num_sent = 0
        async with counting(num_seats) as world:
            for action in script:
                if isinstance(action, int):
                    for _ in range(action):
                        num_sent += 1
                        await world.inbox.send(Number(num_sent))
                        await asyncio.sleep(0)
                    continue
                swapping = asyncio.create_task(world.swap(action.make, BOUNDS))
                while not swapping.done():
                    num_sent += 1
                    await world.inbox.send(Number(num_sent))
                    await asyncio.sleep(0.001)
                assert action.may_end_as(swapping.result().ending), swapping.result()
            said = await world.said(num_sent)
            assert not world.end.stats().depth
            known = sum(stage.total for stage in world.crew.stages)
        assert known == sum(range(1, num_sent + 1))
        assert sorted(each.value for each in said) == list(range(1, num_sent + 1))
        if num_seats == 1:
            assert [each.value for each in said] == list(range(1, num_sent + 1)) and totals(said)

    asyncio.run(main())
