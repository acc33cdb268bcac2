"""NVML: read when scraped, absent where there is none."""

import sys

import pytest
import structlog

from pipeline.messages import DeviceReady
from pipeline.telemetry import Telemetry
from pipeline.telemetry.metrics.gpu import GpuMetrics
from tests.fake_nvml import FakeNvml
from tests.unit.telemetry.test_request_metrics import values


def names(metrics: GpuMetrics) -> list[str]:
    return [family.name for family in metrics.families()]


def test_utilization_and_memory_of_a_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    telemetry = Telemetry()
    telemetry.opened(DeviceReady(8, 4, 2, 64, device="cuda"))
    seen = values(telemetry)
    assert seen[("stageline_gpu_utilization_ratio",)] == 0.5
    assert seen[("stageline_gpu_memory_utilization_ratio",)] == 0.25
    assert seen[("stageline_gpu_memory_used_bytes",)] == 3 << 30
    assert seen[("stageline_gpu_memory_bytes",)] == 8 << 30


def test_another_device_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    telemetry = Telemetry()
    telemetry.opened(DeviceReady(8, 4, 2, 64, device="cpu"))
    assert not any(name.startswith("stageline_gpu") for name, *_ in values(telemetry))
    assert nvml.asked == []


@pytest.mark.parametrize(
    ("visible", "handle"),
    [
        ({}, "first"),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, "second"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-7"}, "seventh"),
    ],
)
def test_the_gpu_is_the_first_that_cuda_may_see(
    visible: dict[str, str], handle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = FakeNvml({0: "first", 1: "second", "GPU-7": "seventh"})
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert len(names(GpuMetrics(visible))) == 4
    assert nvml.asked == [handle]


@pytest.mark.parametrize("module", [None, FakeNvml({})], ids=["no package", "no driver"])
def test_without_nvml_they_are_absent_and_the_log_says_so_once(
    module: FakeNvml | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    metrics = GpuMetrics({})
    with structlog.testing.capture_logs() as lines:
        assert names(metrics) == [] and names(metrics) == []
    assert [line["event"] for line in lines] == ["no GPU metrics"]


def test_a_gpu_that_is_lost_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    metrics = GpuMetrics({})
    assert len(names(metrics)) == 4
    nvml.is_lost = True
    assert names(metrics) == []
    nvml.is_lost = False
    assert names(metrics) == []


def test_the_real_package_has_what_is_called() -> None:
    pynvml = pytest.importorskip("pynvml", reason="needs the extra gpu")
    for name in dir(FakeNvml):
        if not name.startswith("_"):
            assert hasattr(pynvml, name)
