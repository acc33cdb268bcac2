"""A server as a child process: started, watched, ended with its family."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from loadgen.errors import ServerError
from loadgen.server_process import Patience, Usage, free_port, machine_cpu_s, serving
from loadgen.tune.cell_run import command_line
from tests.unit.loadgen.test_tune import is_alive, wait_for

BUSY_CHILD = "import time; data = b'x' * 50_000_000\nwhile time.process_time() < 0.3: pass\n"
SERVER = f"""
import http.server, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {BUSY_CHILD!r} + "time.sleep(60)"])
print(os.getpid(), child.pid, flush=True)
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready).serve_forever()
"""


def test_usage_has_the_children_in_it_and_the_end_is_theirs_too(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"

    async def body() -> None:
        command = [sys.executable, "-c", SERVER, str(port)]
        patience = Patience(ready_s=20, stop_s=5)
        async with serving(command, f"http://127.0.0.1:{port}", log, patience) as server:
            wait_for(lambda: has_child(server.usage()))

    asyncio.run(body())
    pids = [int(word) for word in log.read_text().splitlines()[0].split()]
    wait_for(lambda: not any(map(is_alive, pids)))


def has_child(usage: Usage | None) -> bool:
    """The child's 0.3 s and 50 MB are in it."""
    return usage is not None and usage.cpu_s > 0.25 and usage.rss_bytes > 50e6


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    async def body() -> None:
        async with serving([str(tmp_path / "absent")], "http://127.0.0.1:9", tmp_path / "log", Patience()):
            raise AssertionError("started")

    with pytest.raises(ServerError, match=r"cannot start .*absent: No such file"):
        asyncio.run(body())


def test_the_tail_of_the_log_is_told(tmp_path: Path) -> None:
    program = "for i in range(30): print('line', i)"

    async def body() -> None:
        command = [sys.executable, "-c", program]
        async with serving(command, "http://127.0.0.1:9", tmp_path / "log", Patience()):
            raise AssertionError("ready")

    with pytest.raises(ServerError, match=r"ended with code 0 before it was ready") as caught:
        asyncio.run(body())
    assert str(caught.value).endswith("line 28\nline 29") and "line 17" not in str(caught.value)


def test_command_lines() -> None:
    config = Path("c.toml")
    assert command_line(["serve"], config, 7) == ["serve", "--config", "c.toml", "--port", "7"]
    filled = command_line(["vllm", "--yaml={config}", "--host", "{host}", "-p", "{port}"], config, 7)
    assert filled == ["vllm", "--yaml=c.toml", "--host", "127.0.0.1", "-p", "7"]


def test_the_machine_has_used_what_this_process_has() -> None:
    before, own = machine_cpu_s(), time.process_time()
    while time.process_time() < own + 0.2:
        pass
    after = machine_cpu_s()
    assert before is not None and after is not None and after - before > 0.15
