"""The scheduler when its device is lost at any time: nobody's tokens differ, nothing stays of what is gone.

The machines are those of the other property tests: plain, with sharing, tiers, events and pins, with one
worker and two. The device that comes back knows nothing: a row that reads what it was not told is an error.
"""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace

from pipeline.core.kv_events import Event
from pipeline.messages import DeviceReady, DiskReady, FinishReason, StepHandle, TokenizedRequest
from pipeline.runtime.testing import CheckingRunner
from tests.property.results import tokens_alone
from tests.property.test_kv_events import TellingMachine
from tests.property.test_pins import PinningMachine
from tests.property.test_prefix_cache import SharingMachine
from tests.property.test_scheduler import SchedulerMachine, split
from tests.property.test_tiers import TieredMachine


class Losing(SchedulerMachine):
    """Mixed into a machine: its device is lost, and comes back at the earliest with the next rule."""

    void: list[StepHandle]
    """Steps that had run when the device was lost, and whose results are on their way."""

    @precondition(lambda self: hasattr(self, "scheduler") and not self.scheduler.is_lost)
    @rule(is_out_of_memory=st.sampled_from([False, False, True]))
    def lose(self, is_out_of_memory: bool) -> None:
        running = list(self.scheduler.residents.running)
        assert self.scheduler.device_lost(is_out_of_memory=is_out_of_memory) == running
        self.void = [handle for flying in self.flying for handle in flying]
        for each in (*self.flying, *self.planned):
            each.clear()
        assert self.scheduler.num_in_flight == 0 == self.scheduler.pool.num_owned
        assert self.scheduler.plan(self.tick()) is None

    @precondition(lambda self: hasattr(self, "scheduler") and self.scheduler.is_lost)
    @rule(num_blocks=st.sampled_from([3, 6, 12, 12, 12]), data=st.data())
    def come_back(self, num_blocks: int, data: st.DataObject) -> None:
        device = self.found_anew(data, replace(self.scheduler.device, num_blocks=num_blocks))
        runner = CheckingRunner(device, self.asked)
        self.runners = [runner, *(runner.fork() for _ in self.roles[1:])]
        for rejected in self.scheduler.device_ready(device):
            assert rejected.request_id not in self.got | self.endings, "only who has no row is rejected"
            assert rejected.code in ("kv_capacity_exceeded", "invalid_value")
            del self.requests[rejected.request_id]

    def found_anew(self, data: st.DataObject, device: DeviceReady) -> DeviceReady:
        return device

    @rule()
    def late_results(self) -> None:
        for handle in getattr(self, "void", ()):
            assert self.scheduler.is_void(handle.plan.step_id)

    @invariant()
    def steps_to_come_are_not_void(self) -> None:
        for planned in getattr(self, "planned", ()):
            assert not any(self.scheduler.is_void(plan.step_id) for plan in planned)

    def teardown(self) -> None:
        if hasattr(self, "scheduler") and self.scheduler.is_lost:
            device = replace(self.scheduler.device, num_blocks=12, disk=None)
            runner = CheckingRunner(device, self.asked)
            self.runners = [runner, *(runner.fork() for _ in self.roles[1:])]
            for rejected in self.scheduler.device_ready(device):
                del self.requests[rejected.request_id]
        super().teardown()

    def check_answer(self, request_id: int, request: TokenizedRequest) -> None:
        """What has begun and fits no more is ended by the server; all others are as without a loss."""
        if self.endings.get(request_id) == FinishReason.ERROR:
            got = self.got.get(request_id, [])
            assert got == tokens_alone(request.sampling, len(self.asked[request_id]))[: len(got)]
            return
        super().check_answer(request_id, request)


class Plain(Losing):
    policy = "fcfs"


class PlainFair(Losing):
    policy = "fair"


class Sharing(Losing, SharingMachine):
    policy = "priority"


class Pinning(Losing, PinningMachine):
    policy = "fcfs"


class Telling(Losing, TellingMachine):
    policy = "fcfs"

    def sum_up(self, told: dict[bytes, bytes], event: Event) -> None:
        if event.kind == "cleared":
            told.clear()
        else:
            super().sum_up(told, event)


class Tiered(Losing, TieredMachine):
    """What is on disk may be there again; host memory is not, and nothing that was on its way arrives."""

    def found_anew(self, data: st.DataObject, device: DeviceReady) -> DeviceReady:
        self.asked_moves.clear()
        self.answers.clear()
        self.fault = ""
        if not self.num_shelves or not data.draw(st.booleans()):
            self.disk.clear()
        kept = tuple(name for name, _, _ in self.disk.values())
        disk = DiskReady(self.num_shelves, kept=kept) if self.num_shelves else None
        return replace(device, disk=disk)

    def with_tiers(self, data: st.DataObject, device: DeviceReady) -> DeviceReady:
        device = super().with_tiers(data, device)
        self.num_shelves = device.disk.num_shelves if device.disk else 0
        return device

    def teardown(self) -> None:
        if hasattr(self, "scheduler") and self.scheduler.is_lost:
            self.asked_moves.clear()
            self.answers.clear()
            self.disk.clear()
        super().teardown()


MACHINES: list[Any] = [Plain, Telling, Tiered, *map(split, (PlainFair, Pinning))]
ALL_MACHINES = [*MACHINES, PlainFair, Sharing, Pinning, split(Sharing)]


@pytest.mark.parametrize("machine", MACHINES)
def test_device_lost(machine: type[Losing]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=16, stateful_step_count=40, deadline=None)
    )


@pytest.mark.nightly
@pytest.mark.parametrize("machine", ALL_MACHINES)
def test_device_lost_at_length(machine: type[Losing]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=2000, stateful_step_count=100, deadline=None)
    )
