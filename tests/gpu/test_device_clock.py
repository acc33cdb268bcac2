"""Times of the device by the host's clock, though the two drift and long times are rounded."""

from dataclasses import dataclass

import numpy as np
import pytest

from pipeline.gpu.device_clock import DeviceClock

DAY_NS = 86_400 * 10**9


@dataclass(frozen=True)
class Event:
    """At a time of the device's clock; differences are fp32 ms, as CUDA's are."""

    at_ns: int

    def elapsed_time(self, end_event: "Event") -> float:
        return float(np.float32((end_event.at_ns - self.at_ns) / 1e6))


@pytest.mark.parametrize("drift", [0.0, 5e-5, -5e-5])
def test_after_a_day_times_are_still_right(drift: float) -> None:
    """50 ppm are 4 s a day; found done 0.1 ms late, launched 0.02 ms early."""
    now = 0

    def on_device(ns: int) -> Event:
        return Event(7_000_000_000 + round(ns * (1 + drift)))

    clock = DeviceClock(lambda: now, on_device(0), 0)
    for number in range(2000):
        begin, end = number * DAY_NS // 2000, number * DAY_NS // 2000 + 5_000_000
        now = end + 100_000
        found = clock.span(on_device(begin), on_device(end), begin - 20_000)
        assert found == pytest.approx((begin, end), abs=3_000_000 if number and drift else 1_000)
        assert begin - 20_000 <= found[0] <= found[1] <= now
    assert found == pytest.approx((begin, end), abs=3_000_000)


def test_a_step_behind_another_begins_when_that_has_ended() -> None:
    now = 10_000_000
    clock = DeviceClock(lambda: now, Event(500), 1000)
    assert clock.span(Event(2_000_500), Event(5_000_500), 900) == (2_001_000, 5_001_000)
    assert clock.span(Event(5_000_500), Event(8_000_500), 1_200_000) == (5_001_000, 8_001_000)
    assert clock.span(Event(8_100_500), Event(9_000_500), 8_000_000) == (8_101_000, 9_001_000)
