"""DeviceWorkerState: whether the device workers are there, how often they were not, what they use."""

from collections.abc import Mapping

from pipeline.telemetry.process import process_cpu_ns, rss_bytes


class DeviceWorkerState:
    """Told by the execute stage."""

    def __init__(self) -> None:
        self.fault = ""
        """Why the device is away; empty: it is there, or was never."""
        self.pid = 0
        """Of a process of their own; 0: they are threads of this one."""
        self.num_faults = self.num_out_of_memory = 0

    def lost(self, reason: str, *, is_out_of_memory: bool) -> None:
        self.fault = reason
        self.num_out_of_memory += is_out_of_memory
        self.num_faults += not is_out_of_memory

    def opened(self, pid: int) -> None:
        self.fault, self.pid = "", pid

    def cpu_ns(self) -> int:
        """CPU time of their own process since its start; 0 without one."""
        return process_cpu_ns(self.pid) if self.pid else 0

    def rss_bytes(self) -> int:
        """Memory of their own process that is resident; 0 without one."""
        return rss_bytes(self.pid) if self.pid else 0

    def gauges(self) -> Mapping[str, float]:
        return {
            "device_up": float(not self.fault),
            "device_restarts_total": self.num_faults,
            "device_out_of_memory_total": self.num_out_of_memory,
        }
