"""When things happened on the device, by the host's clock."""

import threading
from typing import Any, Protocol

from pipeline.gpu.device import Clock


class TimedEvent(Protocol):
    """torch.cuda.Event(enable_timing=True), recorded."""

    def elapsed_time(self, end_event: Any) -> Any:
        """ms from this event to a later one; fp32, so of little use over hours. Both have happened."""
        ...


class DeviceClock:
    """Each reading starts at the one before, a step away, and is held between what the host knows: a step
    begins after it is launched, and ends before it is found done. So neither the rounding of long times nor
    the drift between two clocks adds up.

    Args:
        moment: something that happened at_ns by `clock`.
    """

    def __init__(self, clock: Clock, moment: TimedEvent, at_ns: int) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._moment, self._at_ns = moment, at_ns

    def span(self, begin: TimedEvent, end: TimedEvent, launched_ns: int) -> tuple[int, int]:
        """When a step that is done began and ended. Steps are asked for in their order."""
        found_ns = self._clock()
        with self._lock:
            begin_ns = max(launched_ns, self._at_ns + _ns_between(self._moment, begin))
            end_ns = min(found_ns, begin_ns + _ns_between(begin, end))
            self._moment, self._at_ns = end, end_ns
        return min(begin_ns, end_ns), end_ns


def _ns_between(first: TimedEvent, second: TimedEvent) -> int:
    return round(float(first.elapsed_time(second)) * 1e6)
