"""A long walk over few prompts that are asked again and again, so that blocks travel all the way and back.

What test_tiers finds in short runs with anything in them, this meets often: every tier is small, the disk is
slow, often wrong, and never fails for good. The runner compares every token that a row reads with the
reader's own.
"""

import random
from collections import deque

import pytest

from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.prefix import PrefixHash
from pipeline.core.prefix_cache import PrefixCache
from pipeline.core.scheduling import Scheduler
from pipeline.core.tiers import Tiers
from pipeline.messages import (
    DeviceReady,
    DiskMove,
    DiskMoved,
    DiskMoves,
    DiskReady,
    FinishReason,
    SampledBatch,
    SamplingParams,
    StepHandle,
    StepPlan,
    TokenizedRequest,
)
from pipeline.runtime.testing import Cell, CheckingRunner
from tests.property.asked import BLOCK, CREDITS
from tests.property.places import assert_places_are_conserved

NUM_FAMILIES = 6


class Walk:
    """A scheduler, its device and its disk; one call of `step` does one thing at random."""

    def __init__(self, seed: int, keeps: bool) -> None:
        self.rng = random.Random(seed)
        disk = DiskReady(30, keeps)
        self.device = DeviceReady(14, BLOCK, 3, 32, num_host_blocks=10, block_copy_ns=1, disk=disk)
        policies = make_policies(SchedulingOptions(max_wait_ms=None), self.device)
        assert policies.cost is not None
        self.tiers = Tiers(self.device, policies.host, policies.cost)
        self.cache = PrefixCache(PrefixHash(BLOCK, "m", b"s" * 32), tiers=self.tiers)
        self.scheduler = Scheduler(self.device, (), policies, prefixes=self.cache)
        self.asked: dict[int, list[int]] = {}
        self.runner = CheckingRunner(self.device, self.asked)
        self.planned: deque[StepPlan] = deque()
        self.flying: deque[StepHandle] = deque()
        self.moves: deque[DiskMoves] = deque()
        self.answers: deque[DiskMoved] = deque()
        self.disk: dict[int, tuple[bytes, list[Cell | None]]] = {}
        self.now = 1

    def step(self) -> None:
        does = self.rng.choices(
            (self.ask, self.plan, self.run, self.apply, self.work, self.answer, self.cancel),
            (3, 8, 6, 8, 6, 6, 0.3),
        )[0]
        does()
        self.now += 100
        moves = self.cache.take_moves()
        if moves is not None:
            self.moves.append(moves)
        assert_places_are_conserved(
            self.scheduler, [move.place for move in self.tiers.shelves._moves.values()]
        )

    def ask(self) -> None:
        if len(self.scheduler._live) < 5:
            family, size = self.rng.randrange(NUM_FAMILIES), self.rng.randint(5, 30)
            token_ids = [1000 * family + k for k in range(size)]
            request_id = len(self.asked)
            self.asked[request_id] = list(token_ids)
            sampling = SamplingParams(max_tokens=self.rng.randint(1, 12), seed=family)
            request = TokenizedRequest(request_id, token_ids, sampling, self.now, self.now, (0, 0, 0))
            assert self.scheduler.add(request) is None

    def plan(self) -> None:
        num_out = len(self.planned) + len(self.flying)
        if num_out < CREDITS and (plan := self.scheduler.plan(self.now)) is not None:
            self.planned.append(plan)

    def run(self) -> None:
        """The device gets to its next step: any time after it was planned."""
        if self.planned:
            self.flying.append(self.runner.launch(self.planned.popleft()))

    def apply(self) -> None:
        if self.flying:
            handle = self.flying.popleft()
            plan, took_ns = handle.plan, 50 * len(handle.plan.token_ids)
            ids = [r for r, s in zip(plan.request_ids, plan.samples, strict=True) if s]
            epochs = [e for e, s in zip(plan.epochs, plan.samples, strict=True) if s]
            times = (self.now, self.now, self.now + took_ns, self.now + took_ns, self.now + took_ns)
            self.now += took_ns
            self.scheduler.apply(
                SampledBatch(plan.step_id, ids, epochs, handle.token_ids_sync(), times), self.now
            )
            self.scheduler.take_tokens(self.now)

    def cancel(self) -> None:
        if self.scheduler._live:
            self.scheduler.cancel(self.rng.choice(sorted(self.scheduler._live)), FinishReason.CANCELLED)

    def work(self) -> None:
        if self.moves:
            moves = self.moves.popleft().moves
            are_good = [self.move(move) for move in moves]
            self.answers.append(DiskMoved([move.move_id for move in moves], are_good, 20 * len(moves)))

    def move(self, move: DiskMove) -> bool:
        if not move.is_fetch:
            self.disk[move.shelf] = (move.key, list(self.runner._host_cells[move.place]))
            return True
        key, cells = self.disk[move.shelf]
        is_good = self.rng.random() < 0.95
        self.runner._host_cells[move.place] = list(cells) if is_good else [None] * BLOCK
        assert key == move.key
        return is_good

    def answer(self) -> None:
        if self.answers:
            self.cache.moved(self.answers.popleft())

    def finish(self) -> None:
        for _ in range(3000):
            for does in (self.plan, self.run, self.apply, self.work, self.answer):
                does()
            if (moves := self.cache.take_moves()) is not None:
                self.moves.append(moves)
            self.now += 10**6
        assert self.scheduler.is_idle and self.scheduler.pool.num_owned == 0
        assert self.tiers.host.pool.num_owned == self.tiers.shelves.pool.num_owned == 0


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_blocks_travel_and_come_back(seed: int, keeps: bool) -> None:
    walk = Walk(seed, keeps)
    for _ in range(6000):
        walk.step()
    walk.finish()
    gauges = walk.cache.gauges()
    assert gauges["prefix_host_hit_tokens_total"] > 20 * BLOCK
    assert gauges["prefix_disk_hit_tokens_total"] > 20 * BLOCK
    assert gauges["disk_corrupt_blocks_total"] > 0
    assert walk.scheduler.num_preemptions > 0
