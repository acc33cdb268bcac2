"""A server as a child process: started on a free port, watched, ended together with all its children."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import msgspec

from loadgen.errors import ServerError

_POLL_S = 0.1
_TAIL_LINES = 12
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Usage(msgspec.Struct, frozen=True):
    """Of a process and its descendants."""

    cpu_s: float
    rss_bytes: int


class Patience(msgspec.Struct, frozen=True):
    """How long a server may take."""

    ready_s: float = 300.0
    """From its start until `ready_path` answers 200."""
    stop_s: float = 40.0
    """From SIGTERM to its end; then it is killed."""
    ready_path: str = "/ready"


class ServerProcess:
    """A running child. It leads a session of its own, so that a Ctrl-C in the terminal is not sent to it."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.log = log
        self._process = process

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    def usage(self) -> Usage | None:
        """CPU time and memory so far; None where there is no /proc, or when it has ended."""
        found = [usage_of(pid) for pid in _family(self._process.pid)]
        known = [usage for usage in found if usage is not None]
        if not known:
            return None
        return Usage(sum(usage.cpu_s for usage in known), sum(usage.rss_bytes for usage in known))

    def peak_rss_bytes(self) -> int | None:
        """The sum of the most that each of its processes has had in memory; None where there is no /proc."""
        peaks = [_peak_rss_bytes(pid) for pid in _family(self._process.pid)]
        return sum(peaks) or None

    def tail(self) -> str:
        """The last lines that it wrote."""
        lines = self.log.read_text("utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])


@asynccontextmanager
async def serving(
    command: list[str], url: str, log: Path, patience: Patience
) -> AsyncIterator[ServerProcess]:
    """Runs `command` until the end of the block; it is ready at its beginning. Output goes to `log`.

    At the end, however it comes, it gets SIGTERM; what is left of its session after `stop_s` is killed.

    Raises:
        ServerError: it cannot be started, ends before it is ready, or is not ready in time.
    """
    with log.open("wb") as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ServerError(f"cannot start {command[0]}: {error.strerror}") from error
    server = ServerProcess(process, log)
    try:
        await _ready(server, url + patience.ready_path, patience.ready_s)
        yield server
    finally:
        await _stop(process, patience.stop_s)


def machine_cpu_s() -> float | None:
    """CPU time that all processes of this machine have used; None where there is no /proc.

    See proc(5), the first line of `stat`: user, nice, system, idle, iowait, irq, softirq.
    """
    try:
        fields = Path("/proc/stat").read_text().split(maxsplit=8)
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq = map(int, fields[1:8])
    return (user + nice + system + irq + softirq) / _CLOCK_TICKS


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def _ready(server: ServerProcess, url: str, ready_s: float) -> None:
    try:
        async with asyncio.timeout(ready_s), aiohttp.ClientSession() as session:
            while not await _answers(session, url):
                if server.exit_code is not None:
                    raise ServerError(
                        f"the server ended with code {server.exit_code} before it was ready; "
                        f"the end of {server.log}:\n{server.tail()}"
                    )
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        raise ServerError(
            f"the server was not ready within {ready_s:g} s (GET {url}); "
            f"the end of {server.log}:\n{server.tail()}"
        ) from error


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, OSError):
        return False


async def _stop(process: asyncio.subprocess.Process, stop_s: float) -> None:
    """SIGTERM to the leader, which knows how to drain; SIGKILL to what is left of its session."""
    try:
        with suppress(ProcessLookupError):
            process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(stop_s):
                await process.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _family(pid: int) -> list[int]:
    """`pid` and its descendants, as far as /proc tells."""
    family = [pid]
    for member in family:
        with suppress(OSError):
            for task in Path(f"/proc/{member}/task").iterdir():
                family += [int(child) for child in (task / "children").read_text().split()]
    return family


def _peak_rss_bytes(pid: int) -> int:
    """VmHWM of proc(5); 0 of a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def usage_of(pid: int) -> Usage | None:
    """Of one process; None where there is no /proc, or when it has ended.

    See proc(5): the fields of `stat` count from behind the name, which may hold anything.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    user, system, rss_pages = int(fields[11]), int(fields[12]), int(fields[21])
    return Usage((user + system) / _CLOCK_TICKS, rss_pages * _PAGE_BYTES)
