"""How many threads a step runs on: tried out at the start, for few tokens and for many.

Few tokens read every weight for little arithmetic, so that memory is what limits them, which a part of the
cores may use up; many tokens are arithmetic. What is best depends on the machine: hyperthreads share a core's
arithmetic, and the event loop needs a core now and then.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

FEW = 16
"""Tokens; a step of more is arithmetic."""
MANY = 64
"""Tokens of the step that is tried for those."""
PAYS = 0.95
"""Another count than one thread a core has to take no more than this share of the time."""
BUDGET_S = 0.15
"""For each kind of step; then no further round is begun, but at least one is run."""
MAX_ROUNDS = 12
FOREIGN_CORES = 0.2
"""Used by other processes meanwhile, the trial is worth nothing: they may end, and the choice stays."""
LOOP_BUSY_S, LOOP_IDLE_S = 0.0001, 0.0004
"""What the event loop is taken to do beside a step: a fifth of a core, holding the interpreter's lock."""

_CPUS = Path("/sys/devices/system/cpu")


class Threads(NamedTuple):
    """Of steps with few tokens, and with many."""

    few: int
    many: int

    def of(self, num_tokens: int) -> int:
        return self.few if num_tokens <= FEW else self.many


class Choice(NamedTuple):
    """What was found."""

    threads: Threads
    few_ms: dict[int, float]
    """Milliseconds of the best step by number of threads, of few tokens, and"""
    many_ms: dict[int, float]
    """of many."""
    foreign_cores: float
    """Used by other processes meanwhile; 0 where the system does not tell."""


def candidates() -> list[int]:
    """Counts to be tried: one a core, which the others have to beat; one a hardware thread; halves."""
    num_threads, num_cores = _count()
    halves = [num_cores >> shift for shift in range(1, num_cores.bit_length())]
    return list(dict.fromkeys([num_cores, num_threads, *halves]))


def choose(
    step: Callable[[int, int], None],
    counts: list[int],
    clock: Callable[[], float] = time.perf_counter,
    foreign_s: Callable[[], float] = lambda: _foreign_s(),
) -> Choice:
    """Tries the counts by turns, and goes by each one's best step; beside busy processes by nothing.

    Args:
        step: runs one of (num_tokens, num_threads).
        counts: as `candidates` gives them.
        foreign_s: CPU seconds that other processes have used, on the cores that this one may use.
    """
    begin_s, before_s = clock(), foreign_s()
    with _busy_loop():
        few_ms, many_ms = (_tried(step, num_tokens, counts, clock) for num_tokens in (1, MANY))
    foreign_cores = max(0.0, foreign_s() - before_s) / (clock() - begin_s)
    if foreign_cores > FOREIGN_CORES:
        return Choice(Threads(counts[0], counts[0]), few_ms, many_ms, foreign_cores)
    found = Threads(_best(few_ms, counts[0]), _best(many_ms, counts[0]))
    return Choice(found, few_ms, many_ms, foreign_cores)


def _tried(
    step: Callable[[int, int], None], num_tokens: int, counts: list[int], clock: Callable[[], float]
) -> dict[int, float]:
    step(num_tokens, counts[0])  # its memory is there, and the threads have been started
    best, until_s = dict.fromkeys(counts, float("inf")), clock() + BUDGET_S
    for _ in range(MAX_ROUNDS):
        for count in counts:
            begin_s = clock()
            step(num_tokens, count)
            best[count] = min(best[count], 1000 * (clock() - begin_s))
        if clock() >= until_s:
            break
    return best


def _best(times_ms: dict[int, float], usual: int) -> int:
    fastest = min(times_ms, key=lambda count: times_ms[count])
    return fastest if times_ms[fastest] <= PAYS * times_ms[usual] else usual


@contextmanager
def _busy_loop() -> Iterator[None]:
    """Another thread meanwhile does what the event loop does beside a step."""
    ended = threading.Event()

    def be_busy() -> None:
        while not ended.wait(LOOP_IDLE_S):
            until_s = time.perf_counter() + LOOP_BUSY_S
            while time.perf_counter() < until_s:
                pass

    thread = threading.Thread(target=be_busy, name="like an event loop", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _foreign_s() -> float:
    """See proc(5), the lines `cpuN` of `stat`: user, nice, system, idle, iowait, irq, softirq."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        cpus = os.sched_getaffinity(0)
    except (OSError, AttributeError):
        return 0.0
    busy = 0
    for name, *values in map(str.split, lines):
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
            user, nice, system, _, _, irq, softirq = map(int, values[:7])
            busy += user + nice + system + irq + softirq
    return busy / os.sysconf("SC_CLK_TCK") - time.process_time()


def _count() -> tuple[int, int]:
    """Hardware threads that this process may use, and the cores that they are of."""
    if not hasattr(os, "sched_getaffinity"):
        return (count := os.cpu_count() or 1), count
    cpus = os.sched_getaffinity(0)
    return len(cpus), len({_siblings(cpu) for cpu in cpus})


def _siblings(cpu: int) -> str:
    """The hardware threads of this one's core; where the system does not tell, it is taken to have one."""
    try:
        return (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)
