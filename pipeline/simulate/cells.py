"""Cells: one policy on one number of replicas each, over the same workload."""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from pipeline.core.standing import standing_of
from pipeline.errors import ConfigError
from pipeline.simulate import fleet
from pipeline.simulate.door import GatedDoor, OpenDoor
from pipeline.simulate.figures import Figures, ended, measure
from pipeline.simulate.replica import Replica
from pipeline.simulate.schedulers import make_scheduler, read_options
from pipeline.simulate.slo import Slo
from pipeline.simulate.target import Target
from pipeline.simulate.workload import NS_PER_S, Workload, at_once, rate

Progress: TypeAlias = Callable[[int], None]

MAX_FOR_CAPACITY = 20_000
"""Requests from which the capacity is found."""


class Cell(msgspec.Struct, frozen=True):
    policy: str
    """Its name, for the table."""
    options: dict[str, object]
    """Of stages.schedule, the policy's name among them."""
    num_replicas: int
    is_gated: bool = False
    """Whether the door refuses who would wait too long, as a server's does; else everybody queues."""
    is_padded: bool = False
    """Whether the device computes the padding of static batches."""
    shares_prefixes: bool = False
    """Whether prompts that begin alike are computed once, as `prefix_cache` of the server."""


def run_cell(
    cell: Cell, workload: Workload, target: Target, slo: Slo, progress: Progress = lambda _: None
) -> Figures:
    replicas = [_replica_of(cell, target) for _ in range(cell.num_replicas)]
    refusals = _feed(workload, replicas, target, progress)
    return measure(
        cell.policy,
        replicas,
        refusals,
        target.host,
        num_requests=len(workload),
        rate=rate(workload),
        slo=slo,
        price_per_hour=target.price_per_hour,
    )


def find_capacity(workload: Workload, target: Target, options: dict[str, object]) -> float:
    """Requests/s at which one replica answers them while more wait than it can run.

    All requests are due at once, in their order; taken is the stretch in which from a tenth to nine tenths of
    them end, so that neither the filling nor the emptying of the device counts.
    """
    sample = at_once(workload[:MAX_FOR_CAPACITY])
    replica = _replica_of(Cell("", options | {"policy": "fcfs", "max_wait_ms": None}, 1), target)
    _feed(sample, [replica], target)
    ends = sorted(answer.e2e_ns for answer in ended(replica, target.host))
    if len(ends) < 20:
        raise ConfigError("--load needs at least 20 requests that fit the model, to find what it can bear")
    low, high = len(ends) // 10, len(ends) * 9 // 10
    return (high - low) * NS_PER_S / (ends[high] - ends[low])


def _feed(
    workload: Workload, replicas: list[Replica], target: Target, progress: Progress = lambda _: None
) -> fleet.Refusals:
    return fleet.run(
        workload,
        replicas,
        door_ns=target.host.door_ns,
        max_model_len=target.max_model_len,
        progress=progress,
    )


def _replica_of(cell: Cell, target: Target) -> Replica:
    table = read_options(cell.options)
    standing = standing_of(table.policy, table.fair_weights or {})
    scheduler = make_scheduler(table, target.ready, shares_prefixes=cell.shares_prefixes)
    gated = (target.ready, _ns(table.max_wait_ms), standing, scheduler.policies.retentions)
    door = GatedDoor(*gated) if cell.is_gated else OpenDoor()
    return Replica(scheduler, target.cost, target.host, door=door, is_padded=cell.is_padded)


def _ns(ms: float | None) -> int | None:
    return int(ms * 1e6) if ms else None
