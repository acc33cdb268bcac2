"""What the kernel says of a thread that has to share its CPU."""

import os
import subprocess
import sys
import threading
from time import perf_counter

import pytest

from pipeline.telemetry.process import IS_LINUX, run_delay_ns


@pytest.mark.skipif(not IS_LINUX, reason="only Linux says how long a thread waited for a CPU")
def test_waiting_for_a_cpu_is_seen() -> None:
    waited_ns: list[int] = []
    thread = threading.Thread(target=lambda: waited_ns.append(_delay_beside_a_rival()))
    thread.start()
    thread.join()
    assert waited_ns[0] > 20_000_000


def _delay_beside_a_rival() -> int:
    """Of 200 ms of work on one CPU, with another process there that never rests. Pins the calling thread."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        before_ns, end_s = run_delay_ns(), perf_counter() + 0.2
        while perf_counter() < end_s:
            pass
        return run_delay_ns() - before_ns
    finally:
        rival.kill()
        rival.wait()
