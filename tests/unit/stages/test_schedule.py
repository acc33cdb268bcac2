"""The schedule stage between real inboxes: order of what leaves, credits, room, draining."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.checkpoint.card import ModelCard
from pipeline.core.gate import Gate
from pipeline.messages import (
    Cancel,
    DeviceLost,
    DeviceReady,
    FinishReason,
    Rejected,
    Reopen,
    SampledBatch,
    SamplingParams,
    StepPlan,
    TokenBatch,
    TokenizedRequest,
)
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import StageContext
from pipeline.runtime.testing import ManualClock
from pipeline.stages.schedule import Schedule, ScheduleOptions
from pipeline.telemetry import Telemetry


class Desk:
    """A schedule stage with open ends."""

    def __init__(
        self,
        options: ScheduleOptions,
        model_card: ModelCard,
        room: int = 8,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.inbox: Inbox[Any] = Inbox(64)
        self.plans: Inbox[StepPlan] = Inbox(8)
        self.tokens: Inbox[TokenBatch] = Inbox(room)
        self.rejected: Inbox[Rejected] = Inbox(8)
        self.reopened: Inbox[Reopen] = Inbox(8)
        outlets: dict[type, Any] = {StepPlan: self.plans, TokenBatch: self.tokens, Rejected: self.rejected}
        outlets[Reopen] = self.reopened
        resources: dict[type, object] = {ModelCard: model_card, Telemetry: Telemetry(), Gate: Gate()}
        ctx = StageContext("schedule", self.inbox, outlets, resources, clock=self.clock)
        self.stage = Schedule(ctx, options)
        self.inbox.post(DeviceReady(16, 4, 4, 64))

    def request(self, request_id: int, max_tokens: int = 3) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        now_ns = self.clock()
        self.inbox.offer(TokenizedRequest(request_id, [1, 2, 3], sampling, now_ns, now_ns, (0, 0, 0)))

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def run_device(self) -> None:
        """Answer all plans that are out."""
        await self.settle()
        while self.plans.stats().depth:
            await self.answer(await self.plans.recv_many())

    async def answer(self, plans: Sequence[StepPlan]) -> None:
        for plan in plans:
            ids = [r for r, s in zip(plan.request_ids, plan.samples, strict=True) if s]
            epochs = [e for e, s in zip(plan.epochs, plan.samples, strict=True) if s]
            self.inbox.post(SampledBatch(plan.step_id, ids, epochs, [9] * len(ids), (1, 1, 1, 1, 1)))
        await self.settle()


def test_credits_bound_the_steps_in_flight(fake_card: ModelCard) -> None:
    async def main() -> None:
        desk = Desk(ScheduleOptions(credits=2), fake_card)
        task = asyncio.create_task(desk.stage.run())
        desk.request(0, max_tokens=10)
        await desk.settle()
        assert desk.plans.stats().depth == 2
        await desk.run_device()
        desk.inbox.close()
        await asyncio.wait_for(task, 5)

    asyncio.run(main())


def test_no_room_for_text_means_no_new_plan_and_room_resumes(fake_card: ModelCard) -> None:
    async def main() -> None:
        desk = Desk(ScheduleOptions(), fake_card, room=1)
        task = asyncio.create_task(desk.stage.run())
        desk.request(0, max_tokens=4)
        await desk.run_device()
        assert desk.tokens.stats().depth == 1 and desk.plans.stats().depth == 0
        got: list[int] = []
        while len(got) < 4:
            for batch in await asyncio.wait_for(desk.tokens.recv_many(), 1):
                got += batch.token_ids
            await desk.run_device()
        assert got == [9, 9, 9, 9]
        desk.inbox.close()
        await asyncio.wait_for(task, 5)

    asyncio.run(main())


def test_max_waiting_leaves_requests_in_the_inbox(fake_card: ModelCard) -> None:
    async def main() -> None:
        desk = Desk(ScheduleOptions(max_waiting=2), fake_card)
        task = asyncio.create_task(desk.stage.run())
        for k in range(20):
            desk.request(k)
        await desk.settle()
        assert desk.inbox.stats().depth >= 12, "4 run, 2 wait, and what was taken before the device ran"
        desk.inbox.close()
        while not task.done():
            await desk.run_device()
            await desk.tokens.recv_many()
        await task

    asyncio.run(main())


def test_draining_finishes_what_is_live(fake_card: ModelCard) -> None:
    async def main() -> None:
        desk = Desk(ScheduleOptions(), fake_card)
        task = asyncio.create_task(desk.stage.run())
        desk.request(0, max_tokens=3)
        desk.request(1, max_tokens=2)
        desk.inbox.close()
        await desk.run_device()
        await asyncio.wait_for(task, 5)
        rows = [
            (r, f)
            for b in await desk.tokens.recv_many()
            for r, f in zip(b.request_ids, b.finish_reasons, strict=True)
            if f
        ]
        assert sorted(rows) == [(0, FinishReason.LENGTH), (1, FinishReason.LENGTH)]

    asyncio.run(main())


def test_rejections_pass_through_and_cancels_get_a_row(fake_card: ModelCard) -> None:
    async def main() -> None:
        desk = Desk(ScheduleOptions(), fake_card)
        task = asyncio.create_task(desk.stage.run())
        desk.inbox.post(Rejected(0, "no", 400, None, None))
        desk.request(1, max_tokens=9)
        await desk.settle()
        desk.inbox.post(Cancel(1, FinishReason.CANCELLED))
        await desk.run_device()
        assert [r.request_id for r in await desk.rejected.recv_many()] == [0]
        (batch,) = await desk.tokens.recv_many()
        assert batch.finish_reasons == [FinishReason.CANCELLED]
        desk.inbox.close()
        await asyncio.wait_for(task, 5)

    asyncio.run(main())


def test_it_wakes_by_itself_when_a_gather_window_ends(fake_card: ModelCard) -> None:
    async def main() -> None:
        desk = Desk(ScheduleOptions(gather_ms=30.0), fake_card, clock=time.perf_counter_ns)
        task = asyncio.create_task(desk.stage.run())
        begin_ns = time.perf_counter_ns()
        for k in range(3):
            desk.request(k, max_tokens=1)
        (plan,) = await asyncio.wait_for(desk.plans.recv_many(), 5)
        assert time.perf_counter_ns() - begin_ns >= 30e6
        assert plan.request_ids == [0, 1, 2]
        desk.inbox.post(SampledBatch(plan.step_id, [0, 1, 2], [0, 0, 0], [9, 9, 9], (1, 1, 1, 1, 1)))
        desk.inbox.close()
        await asyncio.wait_for(task, 5)

    asyncio.run(main())


def test_it_wakes_by_itself_to_drop_who_waited_too_long(fake_card: ModelCard) -> None:
    async def main() -> None:
        desk = Desk(ScheduleOptions(max_wait_ms=30.0, credits=1), fake_card, clock=time.perf_counter_ns)
        task = asyncio.create_task(desk.stage.run())
        for k in range(6):  # 4 run, and the device does not answer
            desk.request(k, max_tokens=1)
        await desk.settle()
        assert not desk.rejected.stats().posted
        dropped: list[Rejected] = []
        while len(dropped) < 2:
            dropped += await asyncio.wait_for(desk.rejected.recv_control(), 5)
        assert [(each.request_id, each.status, each.code) for each in dropped] == [
            (4, 503, "wait_too_long"),
            (5, 503, "wait_too_long"),
        ]
        await desk.run_device()
        desk.inbox.close()
        await asyncio.wait_for(task, 5)

    asyncio.run(main())


def test_a_timer_does_not_outlive_the_stage(fake_card: ModelCard) -> None:
    async def main() -> None:
        desk = Desk(ScheduleOptions(max_wait_ms=1e6, credits=1), fake_card)
        task = asyncio.create_task(desk.stage.run())
        for k in range(6):
            desk.request(k)
        await desk.settle()
        timer = desk.stage._timer
        assert timer is not None and not timer.cancelled()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await desk.stage.stop()
        assert timer.cancelled()

    asyncio.run(main())


def test_a_lost_device_is_reopened_and_its_results_are_void(fake_card: ModelCard) -> None:
    async def main() -> None:
        desk = Desk(ScheduleOptions(credits=2), fake_card)
        task = asyncio.create_task(desk.stage.run())
        desk.request(0, max_tokens=4)
        await desk.settle()
        first, second = await desk.plans.recv_many()
        desk.inbox.post(DeviceLost("it is on fire"))
        await desk.settle()
        assert await desk.reopened.recv_many() == [Reopen(last_step_id=second.step_id)]
        late = SampledBatch(first.step_id, [0], [0], [9], (1, 1, 1, 1, 1))
        desk.inbox.post(late)
        desk.request(1)
        await desk.settle()
        assert not desk.plans.stats().depth and not desk.tokens.stats().depth
        desk.inbox.post(DeviceReady(16, 4, 4, 64))
        await desk.settle()
        plans = await desk.plans.recv_many()
        again = plans[0]
        assert again.step_id > second.step_id and again.request_ids == [0, 1]
        assert again.num_computed == [0, 0] and again.epochs == [1, 0]
        await desk.answer(plans)
        await desk.run_device()
        desk.inbox.close()
        await asyncio.wait_for(task, 5)

    asyncio.run(main())


def test_a_smaller_device_answers_who_fits_no_more(fake_card: ModelCard) -> None:
    """With a rejection who has no token yet, with a terminal row who has one."""

    async def main() -> None:
        desk = Desk(ScheduleOptions(credits=1), fake_card)
        task = asyncio.create_task(desk.stage.run())
        desk.request(0, max_tokens=20)
        await desk.settle()
        await desk.answer(await desk.plans.recv_many())
        desk.request(1, max_tokens=20)
        desk.request(2, max_tokens=2)
        desk.inbox.post(DeviceLost("half of it is gone"))
        await desk.settle()
        desk.inbox.post(DeviceReady(2, 4, 4, 64))
        await desk.settle()
        (rejected,) = await desk.rejected.recv_many()
        assert rejected.request_id == 1 and rejected.code == "kv_capacity_exceeded"
        rows = [batch for batch in await desk.tokens.recv_many() if any(batch.finish_reasons)]
        assert rows[0].request_ids == [0] and rows[0].finish_reasons == [FinishReason.ERROR]
        await desk.run_device()
        desk.inbox.close()
        await asyncio.wait_for(task, 5)

    asyncio.run(main())
