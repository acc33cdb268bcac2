"""Thread counts by measurement, with steps that take as long as they are told to."""

import os
import time
from pathlib import Path

import pytest

from pipeline.gpu.host import threads
from pipeline.gpu.host.threads import FEW, MANY, Threads, candidates, choose


class Machine:
    """Steps that take few_ms or many_ms by number of threads, on a clock of its own; what was run."""

    def __init__(self, few_ms: dict[int, float], many_ms: dict[int, float]) -> None:
        self.times_ms = {1: few_ms, MANY: many_ms}
        self.now_s = 0.0
        self.foreign_cores = 0.0
        self.steps: list[tuple[int, int]] = []

    def step(self, num_tokens: int, num_threads: int) -> None:
        self.steps.append((num_tokens, num_threads))
        self.now_s += self.times_ms[num_tokens][num_threads] / 1000

    def clock(self) -> float:
        return self.now_s

    def foreign(self) -> float:
        return 1000.0 + self.foreign_cores * self.now_s


def test_each_kind_of_step_gets_the_count_that_is_fastest() -> None:
    machine = Machine({8: 9.0, 16: 10.0, 4: 5.0, 2: 8.0}, {8: 50.0, 16: 40.0, 4: 90.0, 2: 180.0})
    choice = choose(machine.step, [8, 16, 4, 2], machine.clock, machine.foreign)
    assert choice.threads == Threads(few=4, many=16)
    assert choice.few_ms[4] == pytest.approx(5.0) and choice.many_ms[16] == pytest.approx(40.0)
    assert choice.threads.of(FEW) == 4 and choice.threads.of(FEW + 1) == 16


def test_one_thread_a_core_unless_another_pays() -> None:
    machine = Machine({2: 5.0, 1: 4.9}, {2: 40.0, 1: 80.0})
    assert choose(machine.step, [2, 1], machine.clock, machine.foreign).threads == Threads(2, 2)


def test_beside_busy_processes_the_trial_decides_nothing() -> None:
    machine = Machine({2: 9.0, 1: 5.0}, {2: 90.0, 1: 50.0})
    machine.foreign_cores = 0.5
    choice = choose(machine.step, [2, 1], machine.clock, machine.foreign)
    assert choice.threads == Threads(2, 2) and choice.foreign_cores == pytest.approx(0.5)
    machine.foreign_cores = 0.1
    assert choose(machine.step, [2, 1], machine.clock, machine.foreign).threads == Threads(1, 1)


def test_cpu_time_of_others_is_what_this_process_has_not_used() -> None:
    before_s, own_s = threads._foreign_s(), time.process_time()
    while time.process_time() < own_s + 0.3:
        pass
    assert threads._foreign_s() - before_s > -0.1  # 0.3 s of its own are not in it; others may have worked


def test_a_slow_model_is_tried_once_and_a_fast_one_no_longer_than_needed() -> None:
    slow = Machine({2: 700.0, 1: 1300.0}, {2: 3000.0, 1: 6000.0})
    choose(slow.step, [2, 1], slow.clock, slow.foreign)
    assert slow.steps == [(1, 2), (1, 2), (1, 1), (MANY, 2), (MANY, 2), (MANY, 1)]
    fast = Machine({2: 0.01, 1: 0.01}, {2: 0.1, 1: 0.1})
    choose(fast.step, [2, 1], fast.clock, fast.foreign)
    assert len(fast.steps) == 2 * (1 + 2 * threads.MAX_ROUNDS)


@pytest.mark.parametrize(
    ("siblings", "expected"),
    [
        (["0", "1"], [2, 1]),
        (["0,2", "1,3", "0,2", "1,3"], [2, 4, 1]),
        ([str(cpu) for cpu in range(12)], [12, 6, 3, 1]),
        (["0"], [1]),
    ],
)
def test_candidates_are_of_cores_and_of_hardware_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, siblings: list[str], expected: list[int]
) -> None:
    for cpu, text in enumerate(siblings):
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(text + "\n")
    monkeypatch.setattr(threads, "_CPUS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(len(siblings))))
    assert candidates() == expected
