"""All that KV memory can do at once: shared, pinned, in three tiers, told of, dropped by request, preempted,
cancelled. Every rule and every invariant of the machines of the parts, on one scheduler.
"""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.test_kv_events import TellingMachine
from tests.property.test_pins import PinningMachine
from tests.property.test_scheduler import split
from tests.property.test_tiers import TieredMachine


class Together(TellingMachine, PinningMachine, TieredMachine):
    policy = "fcfs"


class TogetherByPriority(Together):
    policy = "priority"


class OnTwoWorkers(TellingMachine, PinningMachine):
    """Tiers do not go with two."""

    policy = "fair"


MACHINES = [Together, TogetherByPriority, split(OnTwoWorkers)]


@pytest.mark.parametrize("machine", MACHINES)
def test_together(machine: type[TellingMachine]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=40, stateful_step_count=40, deadline=None)
    )


@pytest.mark.nightly
@pytest.mark.parametrize("machine", MACHINES)
def test_together_at_length(machine: type[TellingMachine]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=2000, stateful_step_count=100, deadline=None)
    )
