"""The GPU as NVML sees it: utilisation and memory, read when scraped. Needs the extra `gpu` (nvidia-ml-py).

Only for a pipeline that runs on CUDA; where NVML or its package is not there, the metrics are absent and the
log says so once. The device is the first that CUDA may see: the first of CUDA_VISIBLE_DEVICES, which is an
index in NVML's order or a UUID, else index 0.
"""

import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import structlog

from pipeline.telemetry.metrics.exposition import Family

_PERCENT = 0.01


class GpuMetrics:
    """Opens NVML at the first scrape. `load` gives the module pynvml."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._nvml: Any = None
        self._handle: Any = None
        self._is_absent = False

    def families(self) -> Iterable[Family]:
        if self._handle is None and not self._is_absent:
            self._open()
        if self._handle is None:
            return ()
        try:
            return self._read()
        except self._nvml.NVMLError as error:
            self._give_up(error)
            return ()

    def _read(self) -> list[Family]:
        rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        busy = Family("stageline_gpu_utilization_ratio", "gauge", "Share of the time with a kernel running")
        moved = Family(
            "stageline_gpu_memory_utilization_ratio", "gauge", "Share of the time with memory busy"
        )
        used = Family("stageline_gpu_memory_used_bytes", "gauge", "Device memory in use, by all processes")
        total = Family("stageline_gpu_memory_bytes", "gauge", "Device memory")
        return [
            busy.add(rates.gpu * _PERCENT),
            moved.add(rates.memory * _PERCENT),
            used.add(memory.used),
            total.add(memory.total),
        ]

    def _open(self) -> None:
        try:
            self._nvml = import_module("pynvml")
        except ImportError as error:
            self._give_up(error)
            return
        try:
            self._nvml.nvmlInit()
            self._handle = self._find()
        except self._nvml.NVMLError as error:
            self._give_up(error)

    def _find(self) -> Any:
        name = self._environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip() or "0"
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)

    def _give_up(self, error: Exception) -> None:
        self._is_absent, self._handle = True, None
        structlog.get_logger().warning("no GPU metrics", reason=str(error), needs="stageline[gpu]")
