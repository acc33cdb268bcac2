"""The versus command with small server programs: who is faster, who fails, interruption, no orphans."""

import asyncio
import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadgen.__main__ import main
from loadgen.prefixes import TokenRange
from loadgen.server_process import usage_of
from loadgen.versus import cases
from loadgen.versus.foreign import busy_process
from loadgen.versus.report import figures, table
from loadgen.versus.servers import Server
from loadgen.versus.store import Run, Visit
from tests.unit.loadgen.test_tune import ROOT, is_alive, wait_for

PROGRAM = Path(__file__).with_name("versus_server.py")
ASKS = [
    {"kind": "decode", "prompt_ids": list(range(40)), "max_tokens": 30},
    {"kind": "prefill", "prompt_ids": list(range(100)), "max_tokens": 2},
    *({"kind": "load", "prompt_ids": [i, i + 7, 1, 2, 3], "max_tokens": 3 + i % 4} for i in range(12)),
]


class World:
    """A folder with a servers' file and a workload, and the command on them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        (folder / "workload.jsonl").write_text("\n".join(json.dumps(ask) for ask in ASKS))

    def servers(self, **more: str) -> None:
        """A table for each name, with more arguments of its program."""
        start = shlex.join([sys.executable, str(PROGRAM), "--pids", str(self.folder)]) + " --port {port} "
        tables = (f"[{name}]\ncommand = {json.dumps(start + rest)}\n" for name, rest in more.items())
        (self.folder / "servers.toml").write_text("\n".join(tables))

    def arguments(self, *more: str) -> list[str]:
        files = ("--workload", f"{self.folder}/workload.jsonl", "--out", str(self.out))
        care = ("--quiet-s", "0", "--tries", "1", "--users", "4")
        return ["versus", f"{self.folder}/servers.toml", *files, *care, *more]

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "result.json").read_text())
        return found

    def pids(self) -> list[int]:
        return [int(path.stem) for path in self.folder.glob("*.pid")]

    def alive(self) -> list[int]:
        return [pid for pid in self.pids() if is_alive(pid)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_by_turns_with_medians_and_ratios(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.servers(slow="--token-s 0.004", fast="--token-s 0.001")
    assert main(world.arguments("--rounds", "2")) == 0
    out = capsys.readouterr().out
    titles = [line for line in out.splitlines() if line.startswith("round ")]
    assert titles == [f"round {number} of 2, {name}" for number in (1, 2) for name in ("slow", "fast")]
    assert "| slow | fast | first / best other |" in out
    report = (world.out / "report.md").read_text()
    for row in (
        "decode: tok/s",
        "prefill: TTFT ms",
        "load: output tok/s",
        "load: TPOT p99 ms",
        "peak RSS MiB",
    ):
        assert f"| {row} |" in report
    visits = world.result()["visits"]
    assert [visit["round"] for visit in visits] == [1, 1, 2, 2]
    rates = {visit["server"]: visit["runs"][0]["measures"]["decode: tok/s"] for visit in visits}
    assert rates["slow"] < 250 < rates["fast"] < 1000
    assert all(visit["ready_s"] > 0 and visit["peak_rss_bytes"] > 1e7 for visit in visits)
    assert not any("seen before" in log.read_text() for log in world.out.glob("*.log"))
    assert len(world.pids()) == 4 and not world.alive()


def test_beside_a_busy_process(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.servers(only="--token-s 0.002")
    assert main(world.arguments("--rounds", "1", "--beside-busy")) == 0
    out = capsys.readouterr().out
    assert (
        "| decode beside a busy process: tok/s |" in out and "| load: kept beside a busy process % |" in out
    )
    assert "first / best other" not in out


def test_interrupted_and_gone_on(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.servers(first="", second="--token-s 0.01")
    arguments = world.arguments("--rounds", "1")
    process = subprocess.Popen(
        [sys.executable, "-m", "loadgen", *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    wait_for(lambda: (world.out / "round-1.first.json").exists() and len(world.pids()) == 2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "stopped after 1 of 2 visits" in out and "the same command goes on from there" in out
    assert not world.alive()
    assert main(arguments) == 0
    assert "round 1 of 1, first: finished before" in capsys.readouterr().out
    assert len(world.pids()) == 3 and not world.alive()
    world.servers(first="--token-s 0.002", second="--token-s 0.01")  # another command is another question
    assert main(arguments) == 0
    assert capsys.readouterr().out.count("finished before") == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("--dies-at 4", "ended with code 7"),
        ("--never-ready", "was not ready within 1.5 s"),
        ("--nonsense", "ended with code 2 before it was ready"),
    ],
)
def test_a_server_that_fails_is_said_and_the_others_go_on(
    world: World, capsys: pytest.CaptureFixture[str], fault: str, message: str
) -> None:
    world.servers(broken=fault, sound="")
    assert main(world.arguments("--rounds", "1", "--ready-s", "1.5", "--stop-s", "1")) == 1
    out = capsys.readouterr().out
    assert message in out and "broken failed: " in out
    assert [visit["failure"] is None for visit in world.result()["visits"]] == [False, True]
    assert not world.alive()


def test_answers_of_another_length_are_said(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.servers(short="--short")
    assert main(world.arguments("--rounds", "1")) == 0
    assert "short: 14 answers were of another length than asked." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no server"),
        ("[a", "is no TOML"),
        ("a = 1", "expected a table for each server"),
        ("[a]\ncommand = 'serve'", "needs {port}"),
        ("[a]\ncommand = 'serve \"{port}'", "No closing quotation"),
        ("[a]\ncommand = '{port}'\nport = 1", "unknown field `port`"),
        ("[a]\ncommand = '$NOBODY_SETS_THIS {port}'", "NOBODY_SETS_THIS is not set"),
        ("['a/b']\ncommand = '{port}'", "letters, digits"),
    ],
)
def test_files_that_cannot_be_used(
    world: World, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (world.folder / "servers.toml").write_text(text)
    assert main(world.arguments()) == 2
    assert message in capsys.readouterr().err


def test_workloads_that_cannot_be_used(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.servers(only="")
    for text, message in (
        ("", "holds no request"),
        ('{"kind": "chat", "prompt_ids": [1], "max_tokens": 1}', "line 1: kind must be one of decode"),
        ('{"kind": "load", "prompt_ids": "text", "max_tokens": 1}', "line 1: Expected `array`"),
    ):
        (world.folder / "workload.jsonl").write_text(text)
        assert main(world.arguments()) == 2
        assert message in capsys.readouterr().err


def test_made_requests_are_long_tailed_and_the_same_everywhere() -> None:
    workload = cases.made(0, TokenRange(), 64)
    assert workload == cases.made(0, TokenRange(), 64)
    assert workload.sha256 != cases.made(1, TokenRange(), 64).sha256
    load = [ask for ask in workload.asks if ask.kind == "load"]
    inputs, outputs = [len(ask.prompt_ids) for ask in load], [ask.max_tokens for ask in load]
    assert len(load) == 64
    assert 23 <= min(inputs) < 60 and 500 < max(inputs) <= 795 and 9_000 < sum(inputs) < 15_000
    assert 11 <= min(outputs) < 30 and 150 < max(outputs) <= 231 and 3_500 < sum(outputs) < 6_500
    names = [case.name for case in workload.cases(16, beside_busy=True)]
    assert names == [
        "decode",
        "prefill",
        "load",
        "decode beside a busy process",
        "load beside a busy process",
    ]


def test_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "/there")
    server = Server("$PLACE/serve --at {host}:{port}", env={"LD_LIBRARY_PATH": "$PLACE/lib"})
    filled = ["env", "LD_LIBRARY_PATH=/there/lib", "/there/serve", "--at", "127.0.0.1:7"]
    assert server.command_line(7) == filled


def test_the_busy_process_is_busy_and_ends() -> None:
    async def body() -> int:
        async with busy_process() as pid:
            await asyncio.to_thread(wait_for, lambda: is_busy(pid))
            return pid

    assert not is_alive(asyncio.run(body()))


def is_busy(pid: int) -> bool:
    usage = usage_of(pid)
    return usage is not None and usage.cpu_s > 0.1


def run_of(rate: float, *, is_disturbed: bool = False) -> Visit:
    run = Run("decode", {"decode: tok/s": rate}, 0.5 if is_disturbed else 0.0, is_disturbed, 0)
    return Visit("us", 1, 2.0, 2**20, [run], None)


def test_disturbed_runs_count_only_where_there_are_no_others() -> None:
    visits = [run_of(100.0), run_of(10.0, is_disturbed=True), run_of(120.0)]
    assert str(figures(visits)["decode: tok/s"]) == "110 (100-120)"
    assert str(figures([run_of(10.0, is_disturbed=True)])["decode: tok/s"]) == "10.0 *"
    peer = Visit("peer", 1, 4.0, 2**22, [Run("decode", {"decode: tok/s": 55.0}, 0.0, False, 0)], None)
    text = table(["us", "peer"], [*visits, peer])
    assert "| decode: tok/s | 110 (100-120) | 55.0 | 2.00x |" in text
    assert "| start to ready s | 2.00 | 4.00 | 0.50x |" in text
