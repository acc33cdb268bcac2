"""Fleet: replicas behind one router, fed with a workload.

The router sends each request to the replica with the fewest live ones (the first of them), which it knows
without delay. Before a request is routed, every replica has come up to its time.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pipeline.core.admission import fit
from pipeline.errors import RequestError
from pipeline.simulate.replica import Replica
from pipeline.simulate.workload import Workload

TICK = 500
"""Requests between two calls of `progress`."""


class Refusals:
    """Requests that never became a sequence, by reason."""

    def __init__(self) -> None:
        self.by_reason: dict[str, int] = {}

    def add(self, reason: str) -> None:
        self.by_reason[reason] = self.by_reason.get(reason, 0) + 1

    @property
    def total(self) -> int:
        return sum(self.by_reason.values())


def run(
    workload: Workload,
    replicas: Sequence[Replica],
    *,
    door_ns: int,
    max_model_len: int,
    progress: Callable[[int], None] = lambda _: None,
) -> Refusals:
    """Send the workload and run until all is answered. `progress` is told how many have been sent."""
    refusals = Refusals()
    with _without_collector():
        for index, arrival in enumerate(workload):
            if index % TICK == 0:
                progress(index)
            now_ns = arrival.at_ns + door_ns
            for replica in replicas:
                replica.advance(now_ns)
            try:
                fit(arrival.num_input, arrival.max_tokens or arrival.num_output, max_model_len, 1)
            except RequestError as error:
                refusals.add(error.code or error.message)
                continue
            chosen = min(replicas, key=lambda replica: replica.ledger.num_live)
            chosen.add(index, arrival, now_ns)
        for replica in replicas:
            replica.finish()
            for code in replica.refused:
                refusals.add(code)
    progress(len(workload))
    return refusals


@contextmanager
def _without_collector() -> Iterator[None]:
    """Nothing here is cyclic, and looking for cycles among millions of objects takes half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
