"""The search for a launch configuration, with a clock that is set by hand; and whole, in the interpreter."""

import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from pipeline.__main__ import main
from pipeline.gpu.kernels.config import LaunchConfig
from pipeline.gpu.kernels.timing import MAX_RUNS, MIN_RUNS, WARM_UP, median_ms
from tests.kernels.isolated import isolated


class SetTimer:
    """Says what it is told, run by run; implements Timer."""

    def __init__(self, times: Callable[[int], float]) -> None:
        self.times, self.num_runs = times, 0

    def __call__(self, work: Callable[[], object]) -> float:
        work()
        self.num_runs += 1
        return self.times(self.num_runs)


def test_the_median_without_the_warm_up() -> None:
    timer = SetTimer(lambda run: 1000.0 if run <= WARM_UP else float(run % 2))
    assert median_ms(lambda: None, timer) == 0.0 if MIN_RUNS % 2 else 1.0
    assert timer.num_runs == WARM_UP + MIN_RUNS


@pytest.mark.parametrize(("ms", "num_runs"), [(0.1, MAX_RUNS), (10.0, 10), (1000.0, MIN_RUNS)])
def test_as_many_runs_as_the_budget_has(ms: float, num_runs: int) -> None:
    timer, works = SetTimer(lambda run: ms), []
    assert median_ms(lambda: works.append(1), timer, budget_ms=100) == ms
    assert len(works) == WARM_UP + num_runs


def distance(config: LaunchConfig) -> float:
    """1 at 8 warps, 3 stages, 128; a step away costs one more."""
    size = abs(math.log2(config.constants["TILE"] / 128))
    return 1 + abs(math.log2(config.num_warps / 8)) + abs(config.num_stages - 3) + size


def test_climbs_to_the_best_and_measures_nothing_twice() -> None:
    from pipeline.gpu.kernels.tuning import climb

    asked: list[LaunchConfig] = []

    def cost(config: LaunchConfig) -> float:
        asked.append(config)
        return distance(config)

    tuned = climb(LaunchConfig(2, 1, {"TILE": 32}), cost)
    assert tuned.config == LaunchConfig(8, 3, {"TILE": 128})
    assert (tuned.cost, tuned.first_cost) == (1.0, 7.0)
    assert len(asked) == tuned.num_tried == len({repr(config) for config in asked})


def test_goes_around_what_cannot_be() -> None:
    from pipeline.gpu.kernels.tuning import climb

    tuned = climb(
        LaunchConfig(8, 3, {"TILE": 32}),
        lambda config: math.inf if config.num_warps < 8 else distance(config),
    )
    assert tuned.config.constants == {"TILE": 128}


def test_neighbours_keep_within_bounds() -> None:
    from pipeline.gpu.kernels.tuning import neighbours

    found = list(neighbours(LaunchConfig(1, 1, {"TILE": 1})))
    assert [(each.num_warps, each.num_stages, each.constants["TILE"]) for each in found] == [
        (2, 1, 1),
        (1, 2, 1),
        (1, 1, 2),
    ]


@isolated
def test_a_whole_task_in_the_interpreter() -> None:
    from pipeline.cli.tune_kernels import tune_all
    from pipeline.gpu.kernels.config import read
    from pipeline.gpu.kernels.timing import Gpu
    from pipeline.gpu.kernels.tuning import Task
    from pipeline.gpu.kernels.variant import ModelShape
    from pipeline.gpu.kernels.workloads.suite import TINY

    first = WARM_UP + MIN_RUNS
    timer = SetTimer(lambda run: 100.0 if run <= first else 20.0)  # whatever comes second is faster
    shape = ModelShape("tiny", 4, 2, 32, 64, 96, 128)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernels" / "gpu.json"
        task = Task("activation", shape)
        configs = tune_all([task], path, Gpu("Some GPU", torch.device("cpu"), timer), TINY)
        assert read(path) == configs and configs.gpu == "Some GPU"
        (setting,) = configs.kernels["activation"]
        assert setting.when == {"width": 96} and setting.why.startswith("measured: ")
        assert setting.config.num_warps == 2 and "20.0000 ms against 100.0000 ms" in setting.why


def test_launches_of_other_features_are_tuned_apart() -> None:
    from pipeline.gpu.kernels.tuning import alike
    from pipeline.gpu.kernels.variant import ModelShape
    from pipeline.gpu.kernels.workloads.suite import TINY, build

    shape, sizes = ModelShape("tiny", 2, 1, 32, 64, 96, 128), ("qkv", "output", "down")
    tiny = TINY._replace(products=tuple((name, rows) for name in sizes for rows in (3, 17)))
    groups = alike(build("linear_int8", shape, tiny, torch.device("cpu")), "linear_int8")
    assert [(group[0].features, len(group)) for group in groups] == [
        ({"outputs": 128, "max_rows": 16}, 1),
        ({"outputs": 128, "max_rows": 64}, 1),
        ({"outputs": 64, "max_rows": 16}, 2),
        ({"outputs": 64, "max_rows": 64}, 2),
    ]
    assert alike(groups[0], "linear_int4") == []


@isolated
def test_a_wrong_result_is_no_choice_and_no_start() -> None:
    from dataclasses import replace

    from pipeline.errors import StagelineError
    from pipeline.gpu.kernels.tuning import mean_ms, tune
    from pipeline.gpu.kernels.variant import ModelShape
    from pipeline.gpu.kernels.workloads.suite import TINY, build

    shape = ModelShape("tiny", 4, 2, 32, 64, 96, 128)
    (workload,) = build("activation", shape, TINY, torch.device("cpu"))
    wrong = replace(workload, error=lambda config: math.nan)
    timer = SetTimer(lambda run: 1.0)
    assert mean_ms([workload], workload.default, timer) == pytest.approx(1.0)
    assert mean_ms([workload, wrong], workload.default, timer) == math.inf
    with pytest.raises(StagelineError, match="activation silu_and_mul tiny 3 is wrong here"):
        tune([wrong], workload.default, timer)
    odd = LaunchConfig(4, 1, {"BLOCK": 24})  # no power of two
    assert mean_ms([workload], odd, timer) == math.inf


def test_without_a_gpu_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    assert main(["tune-kernels"]) == 2
    assert "torch sees none" in capsys.readouterr().err
