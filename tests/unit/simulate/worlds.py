"""Small worlds for the simulator's tests: a cost that is a formula, workloads that are seeded."""

import random
from collections.abc import Sequence

from pipeline.messages import DeviceReady, Terms
from pipeline.simulate.door import OpenDoor
from pipeline.simulate.fleet import run
from pipeline.simulate.host import HostCosts
from pipeline.simulate.replica import Replica
from pipeline.simulate.schedulers import make_scheduler, read_options
from pipeline.simulate.work import StepWork
from pipeline.simulate.workload import Arrival

FREE = HostCosts(door_ns=0, launch_ns=0, gap_ns=0, result_ns=0, text_ns=0, flush_tokens=1, flush_ns=0)


class LinearCost:
    """base + tokens + KV, in ns; implements work.Cost."""

    def __init__(self, base_ns: int = 1_000_000, token_ns: int = 10_000, kv_ns: float = 3.7) -> None:
        self.base_ns = base_ns
        self.token_ns = token_ns
        self.kv_ns = kv_ns

    def step_ns(self, work: StepWork) -> int:
        return int(float(self.base_ns + self.token_ns * work.num_tokens) + self.kv_ns * work.num_kv)

    def decode_ns(self, num_rows: int) -> tuple[float, float]:
        return float(self.base_ns + self.token_ns * num_rows), self.kv_ns


def capacity(
    num_blocks: int = 64, block_size: int = 8, max_num_seqs: int = 8, max_num_batched_tokens: int = 64
) -> DeviceReady:
    return DeviceReady(num_blocks, block_size, max_num_seqs, max_num_batched_tokens)


def replica(
    ready: DeviceReady | None = None,
    options: dict[str, object] | None = None,
    host: HostCosts = FREE,
    cost: LinearCost | None = None,
    *,
    door: OpenDoor | None = None,
    can_skip: bool = True,
) -> Replica:
    table = read_options({"max_wait_ms": 1e9} | (options or {}))
    scheduler = make_scheduler(table, ready or capacity())
    return Replica(scheduler, cost or LinearCost(), host, door=door, can_skip=can_skip)


def simulate(
    workload: Sequence[Arrival], replicas: Sequence[Replica], host: HostCosts = FREE
) -> dict[str, int]:
    """Requests refused, by reason."""
    return run(workload, replicas, door_ns=host.door_ns, max_model_len=1 << 20).by_reason


def poisson(seed: int, number: int, mean_gap_ns: float, lengths: Sequence[tuple[int, int]]) -> list[Arrival]:
    """Exponential gaps; (prompt, answer) lengths drawn from `lengths`."""
    draw = random.Random(seed)
    at_ns, arrivals = 0.0, []
    for _ in range(number):
        num_input, num_output = draw.choice(lengths)
        arrivals.append(Arrival(int(at_ns), num_input, num_output, Terms(tenant=draw.choice("ab"))))
        at_ns += draw.expovariate(1 / mean_gap_ns)
    return arrivals
