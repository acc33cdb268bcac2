"""What find_config is asked for: the same by a kernel's launcher, its workloads and its variants."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pipeline.gpu.kernels.catalogue import KERNELS, variants_of
from pipeline.gpu.kernels.config import PACKAGED, Feature, LaunchConfig, packaged_for, read
from pipeline.gpu.kernels.finding import packaged_find
from pipeline.gpu.kernels.variant import ModelShape
from tests.kernels.isolated import isolated

TINY = ModelShape("tiny", 4, 2, 32, 64, 96, 128)


class Asked:
    """Implements Find; notes what it is asked."""

    def __init__(self) -> None:
        self.features: list[dict[str, Feature]] = []
        self.defaults: list[LaunchConfig] = []

    def __call__(self, kernel: str, default: LaunchConfig, *device: Any, **features: Feature) -> LaunchConfig:
        self.features.append(features)
        self.defaults.append(default)
        return default


def asked_by_variants(kernel: str, shape: ModelShape = TINY) -> Asked:
    asked = Asked()
    assert variants_of(kernel, shape, asked) and asked.features
    return asked


@pytest.mark.parametrize("kernel", KERNELS)
@isolated
def test_launchers_workloads_and_variants_ask_alike(kernel: str) -> None:
    import importlib

    from pipeline.gpu.kernels.workloads import suite

    launched = Asked()
    with pytest.MonkeyPatch.context() as patch:
        for name in (*KERNELS, "linear_tile"):
            module = importlib.import_module(f"pipeline.gpu.kernels.{name}")
            patch.setattr(module, "find_config", launched, raising=False)
        found = suite.build(kernel, TINY, suite.TINY, torch.device("cpu"))
        for workload in (each for each in found if each.kernel == kernel):
            launched.features.clear()
            launched.defaults.clear()
            workload.run(None)
            assert launched.features == [workload.features]
            assert launched.defaults == [workload.default]
            assert workload.features in asked_by_variants(kernel).features


def settings() -> Iterator[tuple[str, str, Any]]:
    for path in sorted(PACKAGED.glob("*.json")):
        for kernel, each in read(path).kernels.items():
            yield from ((f"{path.stem} {kernel}", kernel, setting) for setting in each)


@pytest.mark.parametrize(("kernel", "setting"), [(k, s) for _, k, s in settings()])
def test_a_packaged_setting_is_for_launches_that_there_are(kernel: str, setting: Any) -> None:
    """A name that no kernel asks for, or no constant of its, would never be heard of."""
    asked = asked_by_variants(kernel)
    assert all(setting.when.keys() <= features.keys() for features in asked.features)
    assert all(setting.config.constants.keys() == default.constants.keys() for default in asked.defaults)


@pytest.mark.parametrize(
    ("kernel", "features"),
    [
        ("linear_int8", {"outputs": 4096, "max_rows": 64}),
        ("linear_int4", {"outputs": 28_672, "max_rows": 64}),
        ("attention_mass", {"head_dim": 128, "kv_dtype": "int8"}),
    ],
)
def test_small_multiprocessors_get_other_settings(kernel: str, features: dict[str, Feature]) -> None:
    default = LaunchConfig()
    found = [packaged_find(packaged_for(name, 0))(kernel, default, **features) for name in ("L4", "RTX 4090")]
    assert found[0] == found[1] != default
    assert packaged_find(packaged_for("H100", 0))(kernel, default, **features) is default
