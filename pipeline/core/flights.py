"""Flights: the steps that are planned and not yet applied, and the blocks that must wait for them."""

from collections import deque
from dataclasses import dataclass, field, replace

from pipeline.core.scores import Scoring
from pipeline.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Flight:
    """A step between its plan and its result."""

    step_id: int
    worker: int
    joined: list[Sequence]
    """Sequences whose first step (since they waited, or on this worker) it is."""
    num_rows: int
    num_prefill_tokens: int
    num_decode_tokens: int
    num_running: int
    num_waiting: int
    num_used_blocks: int
    num_kv_tokens: int
    num_shared_tokens: int
    """Of them, those that are another sequence's as well."""
    num_cached_tokens: int
    """Of new prompts, that need not be computed, in this step or any."""
    num_padding_tokens: int
    """What a padded batch would compute in this step for nothing; see policies.batching."""
    preempted_ids: list[int]
    """Requests that were sent back to the queue since the plan before."""
    asking: list[tuple[Sequence, int]] = field(default_factory=list)
    """Whose blocks the plan's questions are about, and their epochs."""
    scoring: list[Scoring] = field(default_factory=list)
    """Whose prompts' tokens it scores."""
    resting: list[int] = field(default_factory=list)
    """Blocks that are free once it is applied; see flights."""

    @property
    def is_carried(self) -> bool:
        """It has rows of an earlier step: the device might have gone on with them at once."""
        return self.num_rows > len(self.joined)


class Flights:
    """Each worker's, in the order of their launch.

    Why blocks rest: a freed block may still be written, or read, by a step in flight. A later step of the
    same worker runs after that one, so with one worker a freed block is free at once. A step of another
    worker may run at the same time: with more than one, the freed block is free once that step is applied.
    """

    def __init__(self, num_workers: int) -> None:
        self.num_resting = 0
        """Blocks that will be free when a step in flight is applied."""
        self.latest: Flight
        """The one added last."""
        self.num_workers = num_workers
        self._flying: list[deque[Flight]] = [deque() for _ in range(num_workers)]

    def __len__(self) -> int:
        return sum(map(len, self._flying))

    def clear(self) -> None:
        """None of them will be applied: the device is lost, and the blocks with it."""
        self.num_resting = 0
        for flying in self._flying:
            flying.clear()

    def num_of(self, worker: int) -> int:
        return len(self._flying[worker])

    def add(self, flight: Flight) -> None:
        self.latest = flight
        self._flying[flight.worker].append(flight)

    def land(self, step_id: int) -> Flight:
        """Take out the step, which must be the oldest of its worker; its `resting` blocks are free now."""
        for flying in self._flying:
            if flying and flying[0].step_id == step_id:
                flight = flying.popleft()
                self.num_resting -= len(flight.resting)
                return flight
        raise AssertionError(f"step {step_id} applied, but it is the oldest of no worker")

    def num_kv_tokens(self, worker: int) -> list[int]:
        """Of the worker's, the oldest first."""
        return [flight.num_kv_tokens for flight in self._flying[worker]]

    def postpone(self, worker: int, num_steps: int, num_kv_tokens: list[int]) -> None:
        """As if the worker's had been planned so many steps later, over so many tokens each."""
        flying = self._flying[worker]
        for place, (flight, num_kv) in enumerate(zip(flying, num_kv_tokens, strict=True)):
            flying[place] = replace(flight, step_id=flight.step_id + num_steps, num_kv_tokens=num_kv)

    def rest(self, worker: int, blocks: list[int]) -> bool:
        """Keep blocks that the steps of `worker` may touch until these are applied; False: no need to."""
        flying = self._flying[worker]
        if self.num_workers == 1 or not flying:
            return False
        flying[-1].resting.extend(blocks)
        self.num_resting += len(blocks)
        return True
