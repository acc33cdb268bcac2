"""Looks for the launch configuration that a kernel is fastest with: from the one it has, step by step.

A step halves or doubles one number, or adds one to the stages or takes one away; the best of all steps is the
next start, until none is better. What does not compile, or gives another result, is no choice.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
from triton.errors import TritonError

from pipeline.errors import StagelineError
from pipeline.gpu.kernels.config import LaunchConfig, Setting
from pipeline.gpu.kernels.finding import find_config
from pipeline.gpu.kernels.timing import Gpu, Timer, median_ms
from pipeline.gpu.kernels.variant import ModelShape
from pipeline.gpu.kernels.workloads.suite import Sizes, build
from pipeline.gpu.kernels.workloads.workload import Workload

MAX_WARPS, MAX_STAGES = 16, 6
MIN_GAIN = 0.03
"""Of the time: less may be noise, and is not worth another configuration."""

Cost: TypeAlias = Callable[[LaunchConfig], float]
"""Smaller is better; infinite: cannot be."""


class Task(NamedTuple):
    """A kernel of a model, to be tuned."""

    kernel: str
    shape: ModelShape


class Tuned(NamedTuple):
    """What a search has found."""

    config: LaunchConfig
    cost: float
    first_cost: float
    num_tried: int

    @property
    def gain(self) -> float:
        """Of the time, as a share."""
        return 1 - self.cost / self.first_cost

    @property
    def is_better(self) -> bool:
        """Than what there was, by enough to be saved."""
        return self.gain >= MIN_GAIN


def tune_task(task: Task, sizes: Sizes, gpu: Gpu) -> Iterator[tuple[Tuned, Setting]]:
    """What was found, for launches of the same features at a time.

    Raises StagelineError where the kernel gives another result than torch.
    """
    for workloads in alike(build(task.kernel, task.shape, sizes, gpu.device), task.kernel):
        first = workloads[0]
        start = find_config(task.kernel, first.default, gpu.device, **first.features)
        tuned = tune(workloads, start, gpu.timer)
        yield tuned, as_setting(workloads, tuned)


def alike(workloads: Sequence[Workload], kernel: str) -> list[list[Workload]]:
    """Those of the kernel, by their features."""
    groups: dict[bytes, list[Workload]] = {}
    for each in workloads:
        if each.kernel == kernel:
            key = msgspec.json.encode(dict(each.features), order="deterministic")
            groups.setdefault(key, []).append(each)
    return list(groups.values())


def climb(start: LaunchConfig, cost: Cost) -> Tuned:
    """From `start` to a configuration with no better neighbour."""
    costs: dict[bytes, float] = {}

    def known(config: LaunchConfig) -> float:
        key = msgspec.json.encode(config, order="deterministic")
        if key not in costs:
            costs[key] = cost(config)
        return costs[key]

    best, first_cost = start, known(start)
    while (next_best := min((best, *neighbours(best)), key=known)) is not best:
        best = next_best
    return Tuned(best, known(best), first_cost, len(costs))


def neighbours(config: LaunchConfig) -> Iterator[LaunchConfig]:
    """Those one step away."""
    replace = msgspec.structs.replace
    for num_warps in (config.num_warps // 2, config.num_warps * 2):
        if 1 <= num_warps <= MAX_WARPS:
            yield replace(config, num_warps=num_warps)
    for num_stages in (config.num_stages - 1, config.num_stages + 1):
        if 1 <= num_stages <= MAX_STAGES:
            yield replace(config, num_stages=num_stages)
    for name, size in config.constants.items():
        for other in (size // 2, size * 2):
            if other >= 1:
                yield replace(config, constants={**config.constants, name: other})


def tune(workloads: Sequence[Workload], start: LaunchConfig, timer: Timer) -> Tuned:
    """For launches that share their features: the cost is the geometric mean of their times, in ms.

    Raises StagelineError where the start itself gives another result than torch.
    """
    for workload in workloads:
        error = workload.error(start)
        if not error <= workload.tolerance:
            raise StagelineError(f"{workload.kernel} {workload.name} is wrong here: it is off by {error:.2g}")
    return climb(start, lambda config: mean_ms(workloads, config, timer))


def mean_ms(workloads: Sequence[Workload], config: LaunchConfig, timer: Timer) -> float:
    """Geometric mean of the launches' median times; infinite if one cannot be done, or not rightly."""
    logs = [math.log(_median_ms(workload, config, timer)) for workload in workloads]
    return math.exp(sum(logs) / len(logs))


def as_setting(workloads: Sequence[Workload], tuned: Tuned) -> Setting:
    """What was found, and for which launches."""
    names = ", ".join(workload.name for workload in workloads)
    times = f"{tuned.cost:.4f} ms against {tuned.first_cost:.4f} ms"
    why = f"measured: {times}, best of {tuned.num_tried}: {names}"
    return Setting(tuned.config, why, dict(workloads[0].features))


def _median_ms(workload: Workload, config: LaunchConfig, timer: Timer) -> float:
    try:
        if not workload.error(config) <= workload.tolerance:
            return math.inf
    except _CANNOT_BE:
        return math.inf
    except RuntimeError as error:
        if "PassManager" in str(error):
            return math.inf
        raise
    return median_ms(lambda: workload.run(config), timer)


_CANNOT_BE = (ValueError, TritonError)
"""What a launcher, the compiler and the driver say to sizes that do not go together; the compiler's passes
say it with a RuntimeError, as CUDA says what no search can go on after."""
