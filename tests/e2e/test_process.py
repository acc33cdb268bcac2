"""`stageline serve` as a user runs it: a process of its own, the real model, signals, wrong settings."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import aiohttp
import pytest

pytestmark = pytest.mark.model

READY_S = 90
STAGELINE = [sys.executable, "-m", "pipeline"]
ENVIRONMENT = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
TOML = '[device]\ndevice = "cpu"\nnum_blocks = 512\n[server]\ndrain_timeout_s = 20'


class Process:
    """A server process, read until it says where it listens."""

    def __init__(self, folder: Path, *args: str, toml: str = TOML) -> None:
        config = folder / "test.toml"
        config.write_text(toml)
        command = [*STAGELINE, "serve", "--config", str(config), "--port", "0", *args]
        self.process = subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said = ""

    def wait_ready(self) -> str:
        """The server's URL."""
        output: IO[str] | None = self.process.stdout
        assert output is not None
        for line in output:
            self.said += line
            if found := re.search(r"is ready after .* at (http://\S+)", line):
                return found[1]
        raise AssertionError(f"the server ended: {self.said}")

    def wait(self, timeout_s: float = 30) -> int:
        rest, _ = self.process.communicate(timeout=timeout_s)
        self.said += rest
        return self.process.returncode


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path)
    yield process
    process.process.kill()
    process.process.wait()


def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        args, env=ENVIRONMENT, input=stdin, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.timeout(240)
def test_serve_chat_replay_and_drain(server: Process, tmp_path: Path) -> None:
    url = server.wait_ready()

    chat = run(
        *STAGELINE, "chat", "--url", url, "--max-tokens", "8", "--temperature", "0", stdin="Say hello.\n"
    )
    assert chat.returncode == 0 and len(chat.stdout.strip()) > 3, chat

    trace = tmp_path / "trace.csv"
    rows = "".join(f"2023-11-16 18:15:4{k}.{k:07d},{20 + k},{4 + k}\n" for k in range(6))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    for protocol in ("ws", "sse"):
        replay = run(
            sys.executable, "-m", "loadgen", "replay", "--trace", str(trace), "--url", url,
            "--protocol", protocol, "--speed", "4", "--tokens-per-word", "1.3",
        )  # fmt: skip
        assert replay.returncode == 0, replay.stdout + replay.stderr

    saved = tmp_path / "out.json"
    assert run(*STAGELINE, "trace", str(saved), "--url", url).returncode == 0
    names = {event.get("name") for event in json.loads(saved.read_text())["traceEvents"]}
    assert len(names) > 5

    asyncio.run(leave_during_a_stream(server, url))
    assert server.wait() == 0, server.said
    assert "Drained" in server.said and "Traceback" not in server.said


async def leave_during_a_stream(server: Process, url: str) -> None:
    """SIGTERM while an answer streams: the answer is completed, and a new request is refused."""
    body: dict[str, Any] = {"prompt": "One two three", "max_tokens": 600, "ignore_eos": True, "stream": True}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            await response.content.readline()
            server.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.3)
            async with session.get(f"{url}/ready") as ready:
                assert ready.status == 503
            text = (await response.content.read()).decode()
        assert '"finish_reason":"length"' in text and text.rstrip().endswith("[DONE]")


@pytest.mark.timeout(120)
def test_a_second_signal_ends_at_once(server: Process) -> None:
    url = server.wait_ready()

    async def main() -> None:
        body = {"prompt": "One", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        stream = f"{url}/v1/completions"
        async with aiohttp.ClientSession() as session, session.post(stream, json=body) as response:
            await response.content.readline()
            server.process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.2)
            server.process.send_signal(signal.SIGINT)
            assert "shutting_down" in (await response.content.read()).decode()

    asyncio.run(main())
    assert server.wait() == 1
    assert "Traceback" not in server.said


def test_ctrl_c_while_the_model_loads(server: Process) -> None:
    output = server.process.stdout
    assert output is not None
    assert "Loading" in output.readline()
    server.process.send_signal(signal.SIGINT)
    assert server.wait(60) == 130
    assert "Traceback" not in server.said


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = tmp_path / "test.toml"
        config.write_text(TOML)
        serve = (*STAGELINE, "serve", "--config", str(config))
        got = run(*serve, "--port", str(port), "--admin-port", "0")
        admin = run(*serve, "--port", "0", "--admin-port", str(port))
    assert got.returncode == admin.returncode == 2
    assert f"port = {port}" in got.stderr and "Traceback" not in got.stderr
    assert f"admin.port = {port}" in admin.stderr and "another Stageline" in admin.stderr


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[stages.stream.options]\nflush_ms = -1", "stages.stream.options.flush_ms = -1: must be"),
        ("[stages.sampel]", "Did you mean sample?"),
        ('[stages.sample]\nuse = "no_such:Thing"', "stages.sample.use"),
        ('[device]\ndtype = "int3"', 'device.dtype = "int3": must be one of'),
        ("[stages.execute]\ninbox = 1", "stages.execute.inbox = 1: must be at least"),
    ],
)
def test_a_wrong_setting_names_file_key_and_what_is_allowed(tmp_path: Path, toml: str, says: str) -> None:
    config = tmp_path / "wrong.toml"
    config.write_text(toml)
    got = run(*STAGELINE, "serve", "--config", str(config))
    assert got.returncode == 2
    assert str(config) in got.stderr and says in got.stderr
    assert len(got.stderr.strip().splitlines()) == 1


def test_a_missing_or_cut_model_file_is_named(tmp_path: Path, model_path: Path) -> None:
    missing = run(*STAGELINE, "serve", "--model", str(tmp_path / "none.gguf"))
    assert missing.returncode != 0 and "none.gguf" in missing.stderr and "Traceback" not in missing.stderr
    cut = tmp_path / "cut.gguf"
    with model_path.open("rb") as whole:
        cut.write_bytes(whole.read(5_000_000))
    got = run(*STAGELINE, "serve", "--model", str(cut))
    assert got.returncode != 0 and "cut.gguf" in got.stderr and "Traceback" not in got.stderr
