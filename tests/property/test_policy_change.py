"""The scheduler when it is to go by other policies at any time: nobody's tokens differ, nobody is lost.

The machines are those of the other property tests. What comes in the place of their policies is any other
combination that can follow them under way (stages.schedule.options.FIXED stays).
"""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from msgspec.structs import replace

from pipeline.core.policies import make_others
from pipeline.messages import DeviceReady
from tests.property.asked import options
from tests.property.test_device_lost import Plain as LosingMachine
from tests.property.test_scheduler import SchedulerMachine, split
from tests.property.test_tiers import TieredMachine

POLICIES = ("fcfs", "priority", "sjf", "fair", "deadline")


class Changing(SchedulerMachine):
    """Mixed into a machine. Its invariants say who must be in the new order, and who holds what."""

    policy = "fcfs"

    @precondition(lambda self: hasattr(self, "scheduler"))
    @rule(data=st.data(), policy=st.sampled_from(POLICIES))
    def change(self, data: st.DataObject, policy: str) -> None:
        before = self.scheduler.policies
        was = before.options
        asked = replace(data.draw(options(policy)), batching=was.batching, pad_to=was.pad_to)
        if was.batching == "static":
            asked = replace(asked, gather_ms=was.gather_ms)
        counted = {name: value for name, value in before.gauges().items() if name.endswith("_total")}
        self.scheduler.go_by(make_others(before, asked, self.device))
        gauges = self.scheduler.policies.gauges()
        assert self.scheduler.policies.options == asked
        assert {name: gauges[name] for name in counted} == counted, "a counter never falls"
        assert self.scheduler.recovery._policies.order is self.scheduler.policies.order

    @property
    def device(self) -> DeviceReady:
        return self.scheduler.device


class Sharing(Changing, TieredMachine):
    """What is in host memory, and on disk, is as it was."""


class Losing(Changing, LosingMachine):
    """It may be lost at the same time."""


MACHINES: list[Any] = [Changing, Sharing, Losing, split(Changing)]


@pytest.mark.parametrize("machine", MACHINES)
def test_policies_change(machine: type[Changing]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=12, stateful_step_count=30, deadline=None)
    )


@pytest.mark.nightly
@pytest.mark.parametrize("machine", MACHINES)
def test_policies_change_at_length(machine: type[Changing]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=300, stateful_step_count=60, deadline=None)
    )
