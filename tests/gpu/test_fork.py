"""Two runners over the same weights and cache: one goes on where the other stopped, and both run at once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace

from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import Runner, build_runner
from pipeline.messages import Admitted, StepHandle, StepPlan
from tests.gpu.driver import TINY, Driver, Sequence, random_tensors

NUM_TOKENS = 12
PROMPTS = [
    [(7 * k + j) % TINY.vocab_size for j in range(length)] for k, length in enumerate((3, 400, 170, 700))
]
BACKENDS = pytest.mark.parametrize("backend", ["torch", "host"])


def new_runner(backend: Any) -> Runner:
    options = RunnerOptions(device="cpu", backend=backend, num_blocks=200, max_num_seqs=8, num_threads=1)
    return build_runner(TINY, random_tensors(TINY), options)


def generate(driver: Driver, prompts: list[list[int]]) -> list[Sequence]:
    sequences = [driver.add(prompt) for prompt in prompts]
    go_on(driver, sequences, NUM_TOKENS)
    return sequences


def go_on(driver: Driver, sequences: list[Sequence], num_tokens: int) -> None:
    while rows := driver.next_rows([s for s in sequences if len(s.output) < num_tokens], chunk=250):
        driver.step(rows)


class TakesOver:
    """A runner whose first step names the slots and blocks that sequences have from another one."""

    def __init__(self, runner: Runner, sequences: list[Sequence]) -> None:
        self.capacity = runner.capacity
        self._runner = runner
        self._sequences = sequences

    def launch(self, plan: StepPlan) -> StepHandle:
        taken, self._sequences = self._sequences, []
        changes = [(s.slot, column, block) for s in taken for column, block in enumerate(s.blocks)]
        return self._runner.launch(
            replace(
                plan,
                admitted=[*plan.admitted, *(Admitted(s.slot, s.sampling, s.slot) for s in taken)],
                block_slots=[*plan.block_slots, *(slot for slot, _, _ in changes)],
                block_cols=[*plan.block_cols, *(column for _, column, _ in changes)],
                block_ids=[*plan.block_ids, *(block for _, _, block in changes)],
            )
        )


@BACKENDS
def test_a_fork_decodes_what_the_other_prefilled(backend: str) -> None:
    alone = generate(Driver(new_runner(backend)), PROMPTS)
    runner = new_runner(backend)
    driver = Driver(runner)
    sequences = [driver.add(prompt) for prompt in PROMPTS]
    go_on(driver, sequences, 1)
    for sequence in sequences:
        sequence.token_ids[-1] = sequence.output[-1]  # known by now: the fork has not sampled it
    driver.runner = TakesOver(runner.fork(), sequences)  # type: ignore[assignment]
    go_on(driver, sequences, NUM_TOKENS)
    assert [s.output for s in sequences] == [s.output for s in alone]


@BACKENDS
def test_both_run_at_the_same_time(backend: str) -> None:
    expected = [s.output for s in generate(Driver(new_runner(backend)), PROMPTS)]
    first = new_runner(backend)

    def rounds(make: Callable[[], Runner], first_block: int) -> list[list[list[int]]]:
        driver = Driver(make())
        driver._free_blocks = list(range(first_block, first_block + 100))
        found = []
        for _ in range(5):
            sequences = generate(driver, PROMPTS)
            found.append([s.output for s in sequences])
            for sequence in sequences:
                driver.remove(sequence)
        return found

    with ThreadPoolExecutor(2) as threads:
        halves = [threads.submit(rounds, lambda: first, 0), threads.submit(rounds, first.fork, 100)]
        assert [half.result() for half in halves] == [[expected] * 5] * 2
