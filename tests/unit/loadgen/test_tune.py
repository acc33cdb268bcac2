"""The tune command with a small server program: right value, interruption, servers that fail, no orphans."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from loadgen.__main__ import main
from tests.unit.loadgen.test_replay import write_trace

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("fake_server_program.py")


class World:
    """A folder with a trace and a base configuration, and the command on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        write_trace(folder, [(0.002 * i, 4, 1) for i in range(48)])
        self.base("")

    def base(self, fake: str, max_num_seqs: int = 2) -> None:
        text = f"[device]\nmax_num_seqs = {max_num_seqs}\n\n[fake]\n{fake}\n"
        (self.folder / "base.toml").write_text(text)

    def arguments(self, *more: str) -> list[str]:
        server = shlex.join([sys.executable, str(PROGRAM)])
        files = ("--trace", f"{self.folder}/trace.csv", "--config", f"{self.folder}/base.toml")
        fixed = ("--out", str(self.out), "--server", server, "--tokens-per-word", "1.3", "--threshold", "0.2")
        return ["tune", *files, *fixed, *more]

    def results(self) -> list[dict[str, object]]:
        return [json.loads(path.read_text()) for path in self.out.glob("*.json")]

    def pids(self) -> list[int]:
        """Of every process that a server program was, or started."""
        return [int(path.stem) for path in self.out.glob("*.pid")]

    def alive(self) -> list[int]:
        return [pid for pid in self.pids() if is_alive(pid)]


def is_alive(pid: int) -> bool:
    """Zombies that nobody has waited for are dead."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.nightly
def test_the_right_value_is_named_and_its_table_printed(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(world.arguments("--vary", "device.max_num_seqs=2,8,16")) == 0
    out = capsys.readouterr().out
    assert "3 cells: the base + 2 of device.max_num_seqs; one variable at a time, 2 runs a cell" in out
    assert "3 to run, about " in out
    assert "2 (base)" in out and "8 (take)" in out
    assert "device.max_num_seqs = 8: +" in out and "past 8 a larger value stops paying" in out
    for row in ("TTFT p99 ms", "KV peak %", "output tokens/step", "segment schedule.wait", "RSS peak MiB"):
        assert f"| {row} " in out
    report = (world.out / "report.md").read_text()
    assert "8 (take)" in report and "past 8 a larger value stops paying" in report
    results = world.results()
    assert len(results) == 3 and all(len(each["runs"]) >= 2 for each in results)  # type: ignore[arg-type]
    measures = results[0]["runs"][0]["measures"]  # type: ignore[index]
    assert measures["output tokens/step"] == 1 and measures["all tokens/step"] == 5
    assert measures["KV peak %"] > 0 and measures["segment schedule.wait"] == pytest.approx(40)
    assert len(world.pids()) == 3 and not world.alive()


def wait_for(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_gone_on(
    world: World, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    arguments = world.arguments("--vary", "device.max_num_seqs=2,4,8")
    command = [sys.executable, "-m", "loadgen", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    wait_for(lambda: len(world.results()) == 1 and len(world.pids()) == 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert "stopped with 1 of 3 cells finished" in out and "the same command goes on from there" in out
    assert not world.alive() and len(world.results()) == 1
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "2 to run" in out and out.count("finished before") == 1
    assert len(world.results()) == 3 and not world.alive()
    assert main(arguments) == 0  # now nothing is left to do
    assert "0 to run" in capsys.readouterr().out and len(world.pids()) == 4


def test_a_server_that_does_not_start_is_a_failed_cell(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = world.arguments("--vary", "fake.fails_to_start=false,true")
    assert main(arguments) == 1
    out = capsys.readouterr().out
    assert "failed: the server ended with code 1 before it was ready" in out
    assert "loading\nno such device: quantum" in out
    assert "fake.fails_to_start: no advice" in out and re.search(r"\| output tok/s .* failed \|", out)
    assert sorted(each["failure"] is None for each in world.results()) == [False, True]
    assert main(arguments) == 1 and "1 to run" in capsys.readouterr().out  # a failed one is tried again


def test_a_server_that_is_never_ready_and_will_not_end_is_killed_with_its_children(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.base("never_ready = true\nstubborn = true")
    more = ("--ready-s", "1.5", "--stop-s", "0.2", "--vary", "device.max_num_seqs=2")
    assert main(world.arguments(*more)) == 1
    assert "the server was not ready within 1.5 s (GET http://127.0.0.1:" in capsys.readouterr().out
    assert len(world.pids()) == 2
    wait_for(lambda: not world.alive())


def test_a_server_that_dies_during_a_run_is_a_failed_cell(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(world.arguments("--vary", "fake.dies_at=0,20")) == 1
    out = capsys.readouterr().out
    assert "failed: the server ended with code 7 during the run" in out and "out of memory" in out


@pytest.mark.nightly
def test_an_slo_is_what_is_aimed_at(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(world.arguments("--vary", "device.max_num_seqs=2,8", "--slo", "ttft=350ms")) == 0
    out = capsys.readouterr().out
    assert "| goodput % " in out and "device.max_num_seqs = 8: +" in out and "% goodput" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vary", "x"], "--vary x: expected KEY=VALUE"),
        (["--vary", "a.b=1", "--config", "absent.toml"], "absent.toml: cannot be read"),
        (["--vary", "a.b=1", "--server", ""], "--server: is empty"),
        (["--vary", "a.b=1", "--server", "no-such-program"], "no-such-program --version"),
    ],
)
def test_what_cannot_be_tuned(
    world: World, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(world.arguments(*arguments)) == 2
    assert message in capsys.readouterr().err


def test_one_run_is_no_evidence(world: World) -> None:
    with pytest.raises(SystemExit):
        main(world.arguments("--vary", "a.b=1", "--repeats", "1"))
