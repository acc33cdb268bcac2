"""CPU time of processes that are no part of a comparison, and one that is there on purpose."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from loadgen.server_process import ServerProcess, machine_cpu_s, usage_of

QUIET_CORES = 0.1
"""Foreign CPU time per second under which a machine counts as quiet."""
_LOOK_S = 0.5
_QUIET_LOOKS = 2

_BUSY = """
import os, sys
if len(sys.argv) > 1: os.sched_setaffinity(0, {int(sys.argv[1])})
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000): pass
"""
"""Ends by itself if its parent is killed."""


class ForeignCpu:
    """Cores that others have used since the last look: neither the server, nor this process, nor `busy`."""

    def __init__(self, server: ServerProcess, busy_pid: int | None = None) -> None:
        self._server, self._busy_pid = server, busy_pid
        self._at_s, self._used_s = time.perf_counter(), self._foreign_s()

    def look(self) -> float | None:
        """Cores since the last look; None where the system does not tell."""
        now_s, used_s = time.perf_counter(), self._foreign_s()
        before, passed_s = self._used_s, now_s - self._at_s
        self._at_s, self._used_s = now_s, used_s
        if before is None or used_s is None:
            return None
        return max(0.0, used_s - before) / passed_s

    def _foreign_s(self) -> float | None:
        machine_s, usage = machine_cpu_s(), self._server.usage()
        if machine_s is None or usage is None:
            return None
        busy = None if self._busy_pid is None else usage_of(self._busy_pid)
        return machine_s - usage.cpu_s - time.process_time() - (0.0 if busy is None else busy.cpu_s)


async def quiet(server: ServerProcess, patience_s: float) -> bool:
    """Waits until others leave the machine alone, `patience_s` at most; whether they do."""
    foreign, until_s, num_quiet = ForeignCpu(server), time.monotonic() + patience_s, 0
    while time.monotonic() < until_s:
        await asyncio.sleep(_LOOK_S)
        cores = foreign.look()
        num_quiet = num_quiet + 1 if cores is None or cores < QUIET_CORES else 0
        if num_quiet == _QUIET_LOOKS:
            return True
    return False


@asynccontextmanager
async def busy_process() -> AsyncIterator[int]:
    """A process that computes without end, on the first core that this one may use; its pid."""
    core = [str(min(os.sched_getaffinity(0)))] if hasattr(os, "sched_getaffinity") else []
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _BUSY, *core)
    try:
        yield process.pid
    finally:
        process.kill()
        await process.wait()
