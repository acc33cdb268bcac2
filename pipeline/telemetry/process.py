"""What the kernel says of this process: CPU time by thread, memory. Linux; elsewhere the answers are absent.

A thread is found by its name: `device`, or `tokenize_0` of a pool's `tokenize`. Its CPU clock is named by its
native id, so a thread that ends meanwhile is an error that is caught and not a bad pointer, as it would be
with pthread_getcpuclockid (the id's layout: MAKE_THREAD_CPUCLOCK of Linux's posix-timers_types.h).
"""

import os
import sys
import threading
import time
from collections.abc import Iterable
from typing import Literal

IS_LINUX = sys.platform == "linux"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PER_THREAD_SCHED = 0b110
_SCHED = 0b010


def thread_cpu_ns(names: Iterable[str], own_name: str) -> dict[str, int]:
    """CPU time since their start of the live threads called `names`; the caller's goes by `own_name`."""
    if not IS_LINUX:
        return {}
    spent = {own_name: time.thread_time_ns()}
    wanted = tuple(names)
    for thread in threading.enumerate():
        name = thread.name.partition("_")[0]
        if name in wanted and thread.native_id is not None:
            spent[name] = spent.get(name, 0) + _cpu_ns(thread.native_id)
    return spent


def run_delay_ns() -> int:
    """How long the calling thread has been ready to run while others had the CPU, since it began; 0 where the
    kernel does not say (Linux's sched-stats.txt)."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1])
    except (OSError, IndexError):
        return 0


def rss_bytes(pid: int | Literal["self"] = "self") -> int:
    """Memory of a process that is resident now; 0 where the kernel does not say, or it is gone."""
    if not IS_LINUX:
        return 0
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def process_cpu_ns(pid: int) -> int:
    """CPU time of a process since its start, all threads; 0 where the kernel does not say, or it is gone.

    Its clock is named like a thread's, without the bit for one (MAKE_PROCESS_CPUCLOCK).
    """
    if not IS_LINUX:
        return 0
    try:
        return time.clock_gettime_ns((~pid << 3) | _SCHED)
    except OSError:
        return 0


def _cpu_ns(native_id: int) -> int:
    try:
        return time.clock_gettime_ns((~native_id << 3) | _PER_THREAD_SCHED)
    except OSError:  # it has ended
        return 0
