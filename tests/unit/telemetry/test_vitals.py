"""The loop's lag, garbage collection, CPU by thread: measured on this process, with generous bounds."""

import asyncio
import gc
import threading
import time
from time import perf_counter_ns

import pytest

from pipeline.runtime.testing import ManualClock
from pipeline.telemetry.process import IS_LINUX, rss_bytes, thread_cpu_ns
from pipeline.telemetry.vitals import GcPauses, LoopLag, Vitals

MS = 1_000_000
linux = pytest.mark.skipif(not IS_LINUX, reason="asks the Linux kernel")


def test_a_callback_that_holds_the_loop_shows_as_lag() -> None:
    async def main() -> None:
        lag = LoopLag(perf_counter_ns)
        lag.start()
        time.sleep(0.3)  # noqa: ASYNC251 - this is the fault
        await asyncio.sleep(0.1)
        lag.stop()
        assert lag.longest_ns >= 240 * MS
        assert lag.lags.total >= 240 * MS
        count = lag.lags.count
        await asyncio.sleep(0.12)
        assert lag.lags.count == count > 0, "stopped is stopped"

    asyncio.run(main())


def test_a_timer_that_fires_early_is_no_lag() -> None:
    async def main() -> None:
        clock = ManualClock()
        lag = LoopLag(clock)
        lag.start()
        lag._fire()
        lag.stop()
        assert (lag.lags.count, lag.lags.total, lag.longest_ns) == (1, 0, 0)

    asyncio.run(main())


def test_collections_are_timed_by_generation_while_started() -> None:
    pauses = GcPauses(perf_counter_ns)
    gc.collect()
    assert pauses.count == 0
    pauses.start()
    try:
        gc.collect()
        gc.collect(0)
        counts = [each.count for each in pauses.pauses]
        assert counts[2] >= 1 and counts[0] >= 1
        assert 0 < pauses.longest_ns <= pauses.total_ns
    finally:
        pauses.stop()
        pauses.stop()
    count = pauses.count
    gc.collect()
    assert pauses.count == count and pauses._heard not in gc.callbacks


def test_a_collection_that_began_before_is_not_counted() -> None:
    pauses = GcPauses(ManualClock())
    pauses._heard("stop", {"generation": 2})
    assert pauses.count == 0


@linux
def test_cpu_time_goes_to_the_thread_that_used_it() -> None:
    stop = threading.Event()

    def burn() -> None:
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        stop.wait()

    threads = [threading.Thread(target=burn, name=name) for name in ("tokenize_0", "tokenize_1", "other")]
    for thread in threads:
        thread.start()
    try:
        spent = _until_burnt()
        assert set(spent) == {"loop", "tokenize"}, (
            "a pool's threads are one; what is not asked for is left out"
        )
        assert spent["tokenize"] >= 200 * MS
        assert spent["loop"] <= time.thread_time_ns()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert set(thread_cpu_ns(("tokenize",), "loop")) == {"loop"}, "a thread that has ended is gone"


def _until_burnt() -> dict[str, int]:
    """Two threads burn 100 ms each; a busy machine may take its time."""
    until = time.monotonic() + 10
    while (spent := thread_cpu_ns(("tokenize",), "loop"))["tokenize"] < 200 * MS and time.monotonic() < until:
        time.sleep(0.01)
    return spent


@linux
def test_memory_that_is_resident() -> None:
    assert 1 << 20 < rss_bytes() < 1 << 40


def test_vitals_leave_nothing_behind() -> None:
    async def main() -> None:
        vitals = Vitals(perf_counter_ns)
        before = list(gc.callbacks)
        vitals.start()
        vitals.stop()
        vitals.stop()
        assert gc.callbacks == before
        assert "loop" in vitals.thread_cpu_ns() or not IS_LINUX
        assert vitals.process_cpu_ns() > 0

    asyncio.run(main())
