"""Another scheduler's stage takes over: what it may change, what it may not, and what it goes on with."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pipeline.errors import ConfigError
from pipeline.messages import DeviceReady, FinishReason, Rejected, Terms, TokenBatch, Wake
from pipeline.stages.schedule import Schedule, ScheduleOptions, ScheduleState
from tests.moving import hand_over
from tests.property.test_schedule_state import Floor

ONE_AT_A_TIME = DeviceReady(num_blocks=8, block_size=4, max_num_seqs=1, max_num_batched_tokens=16)


def on_floor(body: Callable[[Floor], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        floor = Floor(ONE_AT_A_TIME, ScheduleOptions(**options))
        await floor.handle(ONE_AT_A_TIME)
        await body(floor)
        await floor.finish()

    asyncio.run(main())


async def order_of(floor: Floor) -> list[int]:
    """In which they end."""
    await floor.finish()
    return list(floor.told())


async def three(floor: Floor) -> None:
    """The first runs; of the others the latter is the more urgent, and the shorter."""
    await floor.arrive(2, 6, Terms())
    await floor.arrive(8, 8, Terms(priority=0, tenant="gold"))
    await floor.arrive(2, 2, Terms(priority=2))


@pytest.mark.parametrize(
    ("policy", "order"),
    [("fcfs", [0, 1, 2]), ("priority", [0, 2, 1]), ("sjf", [0, 2, 1]), ("fair", [0, 1, 2])],
)
def test_who_waits_goes_by_the_newcomers_policy(policy: str, order: list[int]) -> None:
    async def body(floor: Floor) -> None:
        await three(floor)
        options = ScheduleOptions(policy=policy, max_preemptions=0, sjf_tokens_per_s=1e-6)
        await floor.place.move(options=options)
        assert await order_of(floor) == order

    on_floor(body)


def test_who_waits_is_dropped_when_the_newcomer_says() -> None:
    async def body(floor: Floor) -> None:
        await three(floor)
        await floor.place.move(options=ScheduleOptions(max_wait_ms=1.0))
        await floor.handle()
        assert floor.refused == {1, 2}

    on_floor(body, max_wait_ms=None)


def test_more_credits_are_used_at_once_and_fewer_when_steps_have_ended() -> None:
    async def body(floor: Floor) -> None:
        await floor.arrive(2, 6, Terms())
        assert len(floor.flying) == 1
        await floor.place.move(options=ScheduleOptions(credits=3))
        await floor.handle()
        assert len(floor.flying) == 3
        await floor.place.move(options=ScheduleOptions(credits=1))
        await floor.step()
        await floor.step()
        assert len(floor.flying) == 1

    on_floor(body, credits=1)


@pytest.mark.parametrize(
    ("options", "was", "asked"),
    [
        ({"separation": "split"}, "'mixed'", "'split'"),
        ({"prefix_cache": False}, "True", "False"),
        ({"allocation": "contiguous"}, "'paged'", "'contiguous'"),
        ({"max_pinned_blocks": 4}, "0", "4"),
        ({"kv_events": 100}, "0", "100"),
        ({"batching": "static"}, "'continuous'", "'static'"),
        ({"pad_to": 7}, "0", "7"),
    ],
)
def test_what_is_laid_out_at_start_is_refused_and_the_one_before_goes_on(
    options: dict[str, Any], was: str, asked: str
) -> None:
    async def body(floor: Floor) -> None:
        await three(floor)
        old = floor.stage
        new = Schedule(old.ctx, ScheduleOptions(policy="priority", **options))
        (name,) = options
        state = old.export_state()
        old.import_state(ScheduleState())
        with pytest.raises(ConfigError, match=f"options.{name} = {asked}: must stay {was} while"):
            new.import_state(state)
        new.import_state(ScheduleState())
        old.import_state(state)
        await new.stop()
        assert await order_of(floor) == [0, 1, 2]

    on_floor(body)


def test_a_static_batch_keeps_its_pause() -> None:
    async def body(floor: Floor) -> None:
        new = Schedule(floor.stage.ctx, ScheduleOptions(batching="static", gather_ms=5.0))
        with pytest.raises(ConfigError, match="gather_ms"):
            new.import_state(floor.stage.export_state())

    on_floor(body, batching="static")


def test_policies_that_do_not_suit_the_device_are_refused() -> None:
    async def body(floor: Floor) -> None:
        options = ScheduleOptions(kv_eviction="sink_window", kv_budget=1 << 20)
        new = Schedule(floor.stage.ctx, options)
        with pytest.raises(ConfigError, match="kv_budget"):
            new.import_state(floor.stage.export_state())
        assert floor.stage._scheduler.policies.options.kv_eviction == "none"

    on_floor(body)


def test_what_is_seen_is_of_who_serves() -> None:
    async def body(floor: Floor) -> None:
        await three(floor)
        old = floor.stage
        before, steps = old.gauges(), old.gauges()["steps_total"]
        await floor.place.move(options=ScheduleOptions(policy="fair", max_wait_ms=5000.0))
        assert floor.stage.gauges() == before
        assert old.gauges() == {}
        assert floor.stage._telemetry.occupancy is not None
        assert floor.stage._telemetry.occupancy().num_waiting == 2
        await floor.step()
        assert floor.stage.gauges()["steps_total"] > steps

    on_floor(body)


def test_a_stage_that_has_seen_nothing() -> None:
    async def main() -> None:
        floor = Floor(ONE_AT_A_TIME, ScheduleOptions())
        assert floor.stage.export_state() == ScheduleState()
        assert floor.stage.gauges() == {} and floor.stage.limit() == 0
        await floor.place.move(options=ScheduleOptions(policy="fair"))
        await floor.handle(ONE_AT_A_TIME)
        assert floor.stage.limit() > 0
        await three(floor)
        await floor.finish()

    asyncio.run(main())


def test_who_gave_his_state_away_does_nothing_more() -> None:
    async def body(floor: Floor) -> None:
        await three(floor)
        old = floor.stage
        new = Schedule(old.ctx, ScheduleOptions(max_wait_ms=20.0))
        hand_over(old, new)
        (woken,) = await floor.inbox.recv_control()
        assert isinstance(woken, Wake), "the newcomer looks at what there is"
        await old.stop()
        assert old._timer is None
        assert floor.inbox._control == floor.inbox._control.__class__()
        for kind in (TokenBatch, Rejected):
            assert floor.outboxes[kind].stats().depth == 0
        floor.place.stage = new
        assert FinishReason.LENGTH in {finish for _, finish in (await _ended(floor)).values()}

    on_floor(body, max_wait_ms=10.0)


async def _ended(floor: Floor) -> dict[int, tuple[list[int], int]]:
    await floor.finish()
    return floor.told()
