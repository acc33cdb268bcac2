"""Swap: nothing is lost or reordered, and a stage that fails is taken back."""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
import uvloop

from pipeline.errors import StageCrashed
from pipeline.runtime.stage import NoState, StageContext
from pipeline.runtime.swapped import Ending
from tests.unit.runtime.swap_world import (
    QUICK,
    Counter,
    Failing,
    Number,
    Said,
    World,
    block,
    counting,
    crash,
    hang,
    totals,
)


def test_the_next_one_goes_on_where_the_other_stopped() -> None:
    async def main() -> None:
        async with counting() as world:
            feeding = asyncio.create_task(world.feed(range(1, 201)))
            await asyncio.sleep(0.05)
            swapped = await world.swap()
            said = await world.said(200)
            await feeding
        assert swapped.ending is Ending.SWAPPED and swapped.reason == ""
        assert swapped.num_batches >= QUICK.trial_batches and 0 < swapped.paused_ns < 1e9
        assert [each.value for each in said] == list(range(1, 201)) and totals(said)
        assert [each.who for each in said] == sorted((each.who for each in said), reverse=True)
        assert said[0].who == "old" and said[-1].who == "new"
        assert world.crew.stages == world.news and world.olds[0].total == 0
        assert world.news[0].service is world.olds[0].service

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        (crash, "ValueError: broken"),
        (hang, "it took longer than 0.1 s"),
        (block, "it held the event loop for 0.1 s"),
    ],
)
@pytest.mark.parametrize("at", [0, 2])
def test_one_that_fails_is_rolled_back_within_a_second(fail: Callable[[], Any], reason: str, at: int) -> None:
    async def main() -> None:
        async with counting() as world:
            feeding = asyncio.create_task(world.feed(range(1, 151)))
            await asyncio.sleep(0.02)
            begin = time.perf_counter()
            swapped = await world.swap(lambda ctx: Failing(ctx, fail, at))
            assert time.perf_counter() - begin < 1
            said = await world.said(150)
            await feeding
        assert swapped.ending is Ending.ROLLED_BACK and swapped.reason == reason
        assert swapped.num_batches == at
        assert [each.value for each in said] == list(range(1, 151)) and totals(said)
        assert sum(each.who == "new" for each in said) >= at
        assert said[-1].who == "old" and world.crew.stages == world.olds

    asyncio.run(main())


def test_what_blocks_is_rolled_back_on_the_loop_of_the_server_too() -> None:
    async def main() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: None)  # as serve has some
        async with counting() as world:
            feeding = asyncio.create_task(world.feed(range(1, 51)))
            assert (await world.swap(lambda ctx: Failing(ctx, block))).ending is Ending.ROLLED_BACK
            assert totals(await world.said(50))
            await feeding

    uvloop.run(main())


def test_a_pool_steps_back_together() -> None:
    async def main() -> None:
        async with counting(num_seats=3) as world:
            feeding = asyncio.create_task(world.feed(range(1, 151)))
            await asyncio.sleep(0.02)
            makes = iter([Counter, lambda ctx: Failing(ctx, crash), Counter])
            swapped = await world.swap(lambda ctx: next(makes)(ctx))
            assert world.crew.stages == world.olds and len(world.crew.tasks) == 3
            said = await world.said(150)
            await feeding
            assert sum(stage.total for stage in world.olds) == sum(range(1, 151))
        assert swapped.ending is Ending.ROLLED_BACK
        assert sorted(each.value for each in said) == list(range(1, 151))

    asyncio.run(main())


def test_a_pool_is_swapped() -> None:
    async def main() -> None:
        async with counting(num_seats=3) as world:
            feeding = asyncio.create_task(world.feed(range(1, 101)))
            assert (await world.swap()).ending is Ending.SWAPPED
            said = await world.said(100)
            await feeding
            assert sum(stage.total for stage in world.news) == sum(range(1, 101))
        assert sorted(each.value for each in said) == list(range(1, 101))

    asyncio.run(main())


class Unstartable(Counter):
    async def start(self) -> None:
        raise OSError("no such device")


class Endless(Counter):
    async def start(self) -> None:
        await asyncio.sleep(60)


class Stranger(Counter):
    State = NoState

    def export_state(self) -> Any:
        return NoState()

    def import_state(self, state: Any) -> None:
        assert state == NoState()


class Nobody(Stranger):
    State = None


class Forgetful(Counter):
    def import_state(self, state: Any) -> None:
        super().import_state(state)
        if state.total:
            raise KeyError("total")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Unstartable, "it does not start: OSError: no such device"),
        (Endless, "it does not start: it took longer than 0.5 s"),
        (Stranger, "requests of before were still under way after 0.2 s"),
        (Nobody, "requests of before were still under way after 0.2 s"),
        (Forgetful, "what the stage knows was not handed over: KeyError: 'total'"),
    ],
)
def test_what_is_refused_leaves_the_stage_as_it_was(kind: type[Counter], reason: str) -> None:
    async def main() -> None:
        async with counting() as world:
            feeding = asyncio.create_task(world.feed(range(1, 51)))
            await asyncio.sleep(0.01)
            swapped = await world.swap(kind)
            assert world.crew.stages == world.olds
            said = await world.said(50)
            await feeding
        assert swapped.ending is Ending.REFUSED and reason in swapped.reason
        assert totals(said) and {each.who for each in said} == {"old"}

    asyncio.run(main())


@pytest.mark.parametrize("kind", [Stranger, Nobody])
def test_one_that_knows_other_things_takes_over_when_there_is_nothing_to_know(kind: type[Counter]) -> None:
    async def main() -> None:
        async with counting() as world:
            await world.inbox.send(Number(5))
            swapping = asyncio.create_task(world.swap(lambda ctx: kind(ctx, "new")))
            await asyncio.sleep(0.05)
            assert world.crew.stages == world.olds
            await world.inbox.send(Number(-5))
            assert (await swapping).ending is Ending.SWAPPED
            await world.inbox.send(Number(7))
            assert await world.said(3) == [Said(5, 5, "old"), Said(-5, 0, "old"), Said(7, 7, "new")]

    asyncio.run(main())


def test_what_has_no_state_is_let_alone() -> None:
    async def main() -> None:
        async with counting() as world:
            assert (await world.swap(Nobody)).ending is Ending.SWAPPED
            assert "Nobody has no State: what it knows would be lost" in (await world.swap()).reason

    asyncio.run(main())


def test_a_constructor_that_raises_is_refused() -> None:
    async def main() -> None:
        async with counting() as world:

            def make(ctx: StageContext) -> Any:
                raise TypeError("options")

            swapped = await world.swap(make)
            assert swapped.ending is Ending.REFUSED and "TypeError: options" in swapped.reason

    asyncio.run(main())


def test_a_stage_that_is_never_between_two_batches_is_let_alone() -> None:
    class Slow(Counter):
        async def handle(self, batch: Sequence[Number]) -> None:
            await asyncio.sleep(0.5)
            await super().handle(batch)

    async def main() -> None:
        async with counting() as world:
            assert (await world.swap(Slow, msgspec.structs.replace(QUICK, batch_s=5))).ending == "swapped"
            await world.feed(range(1, 3))
            swapped = await world.swap()
            assert swapped.ending is Ending.REFUSED
            assert swapped.reason == "the stage was not between two batches within 0.3 s"
            assert totals(await world.said(2))

    asyncio.run(main())


def test_without_traffic_a_trial_ends_too() -> None:
    async def main() -> None:
        async with counting() as world:
            swapped = await asyncio.wait_for(world.swap(), 1)
            assert swapped.ending is Ending.SWAPPED and swapped.num_batches == 0

    asyncio.run(main())


def test_one_that_was_trusted_and_fails_later_is_a_crash() -> None:
    async def main() -> None:
        world = World(1, 1000)
        running = asyncio.create_task(world.supervisor.run(world.until))
        await asyncio.sleep(0)
        assert (await world.swap(lambda ctx: Failing(ctx, crash))).ending is Ending.SWAPPED
        await world.inbox.send(Number(1))
        with pytest.raises(StageCrashed, match="broken"):
            await asyncio.wait_for(running, 5)

    asyncio.run(main())


def test_two_swaps_at_once_are_one() -> None:
    async def main() -> None:
        async with counting() as world:
            first, second = await asyncio.gather(world.swap(), world.swap())
            assert first.ending is Ending.SWAPPED
            assert second == msgspec.structs.replace(
                second, ending=Ending.REFUSED, reason="another swap is under way"
            )

    asyncio.run(main())


def test_who_waits_for_a_swap_may_go() -> None:
    async def main() -> None:
        async with counting() as world:
            waiting = asyncio.create_task(world.swap())
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.sleep(0.2)
            assert world.crew.stages == world.news and world.olds[0].num_stops == 1
            await world.inbox.send(Number(5))
            assert await world.said(1) == [Said(5, 5, "new")]

    asyncio.run(main())


@pytest.mark.parametrize("fails", [False, True])
def test_a_drain_during_the_trial_ends_as_any(fails: bool) -> None:
    async def main() -> None:
        async with counting() as world:
            bounds = msgspec.structs.replace(QUICK, trial_s=5.0)
            make = (lambda ctx: Failing(ctx, crash, 1)) if fails else Counter
            swapping = asyncio.create_task(world.swap(make, bounds))
            while world.crew.stages == world.olds:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0)
            for value in range(1, 51):
                await world.inbox.send(Number(value))
                await asyncio.sleep(0)
            world.until.set()
            said = await world.said(50)
            await asyncio.wait_for(swapping, 1)
        assert totals(said)
        assert world.crew.stages == (world.olds if fails else world.news)

    asyncio.run(main())


def test_a_drain_while_a_newcomer_starts_does_not_wait_for_it() -> None:
    async def main() -> None:
        async with counting() as world:
            swapping = asyncio.create_task(world.swap(Endless, msgspec.structs.replace(QUICK, start_s=60)))
            await asyncio.sleep(0.01)
            world.until.set()
            swapped = await asyncio.wait_for(swapping, 1)
            assert swapped.ending is Ending.REFUSED and swapped.reason == "the server is stopping"

    asyncio.run(main())


def test_a_swap_of_a_server_that_stops_is_refused() -> None:
    async def main() -> None:
        async with counting() as world:
            world.inbox.close()
            assert (await world.swap()).reason == "the server is stopping"

    asyncio.run(main())


def test_what_is_given_up_is_not_heard() -> None:
    class Haunting(Failing):
        async def stop(self) -> None:
            await super().stop()
            await self.ctx.outlet(Said).send(Said(0, 0, "ghost"))

    async def main() -> None:
        async with counting() as world:
            feeding = asyncio.create_task(world.feed(range(1, 51)))
            assert (await world.swap(lambda ctx: Haunting(ctx, crash))).ending is Ending.ROLLED_BACK
            said = await world.said(50)
            await feeding
            assert totals(said) and not world.end.stats().depth

    asyncio.run(main())


def test_a_full_inbox_downstream_is_waited_for_and_is_no_failure() -> None:
    async def main() -> None:
        async with counting(bound=2) as world:
            swapping = asyncio.create_task(world.swap())
            await asyncio.sleep(0.01)
            for value in range(1, 21):
                await world.inbox.send(Number(value))
            await asyncio.sleep(0.15)  # longer than a batch may take
            said = await world.said(20)
            assert (await swapping).ending is Ending.SWAPPED and totals(said)

    asyncio.run(main())
