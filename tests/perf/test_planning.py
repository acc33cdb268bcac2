"""What planning a step costs, counted in bytecodes: by the rows it plans, whoever else waits."""

import sys
from types import FrameType
from typing import Any

import pytest

from pipeline.core.scheduling import Scheduler
from pipeline.messages import DeviceReady
from tests.scheduler_world import World, request, scheduler

POLICIES = ["fcfs", "priority", "sjf", "fair", "deadline"]


def bytecodes_of_plan(core: Scheduler) -> int:
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        core.plan(0)
    finally:
        sys.settrace(None)
    return count


def decoding(policy: str, running: int, waiting: int, *, num_free_slots: int = 0) -> Scheduler:
    """A scheduler whose next step has `running` decode rows; those who wait do not fit."""
    num_blocks = running * 4
    device = DeviceReady(num_blocks, 16, running + num_free_slots, running * 32)
    core = scheduler(device, policy=policy, max_wait_ms=None)
    world = World(core)
    world.add(*(request(k, prompt=40, max_tokens=20, tenant=str(k % 7)) for k in range(running)))
    world.step()
    waits = range(running, running + waiting)
    world.add(*(request(k, prompt=40, max_tokens=20, arrived_ms=1, tenant=str(k % 7)) for k in waits))
    world.step()  # what is due once for each newcomer
    blocks = core.pool.take(core.pool.num_free)
    assert blocks is not None
    return core


@pytest.mark.parametrize("policy", POLICIES)
def test_it_grows_no_faster_than_the_rows(policy: str) -> None:
    small, large = (bytecodes_of_plan(decoding(policy, rows, 0)) for rows in (32, 256))
    assert large < 8.2 * small
    assert large / 256 < 150


@pytest.mark.parametrize("num_free_slots", [0, 4])
@pytest.mark.parametrize("policy", POLICIES)
def test_it_does_not_grow_with_those_who_wait(policy: str, num_free_slots: int) -> None:
    few, many = (
        bytecodes_of_plan(decoding(policy, 64, waiting, num_free_slots=num_free_slots))
        for waiting in (40, 4000)
    )
    assert many < 1.2 * few
