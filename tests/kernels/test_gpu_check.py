"""bench/gpu_check.py, whole, on the CPU with tiny sizes: on a GPU it must not fail for a silly reason."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from bench.checks.parts import Check
from bench.checks.rows import Rates, Row
from bench.gpu_check import PARTS
from tests.kernels.isolated import isolated

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "bench" / "gpu_check.py")
BLOCKED = (
    "aiohttp gguf huggingface_hub jinja2 opentelemetry prometheus_client rich safetensors tokenizers"
    " transformers uvloop"
)
IMPORT = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED.split()!r}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Blocker())
import os; os.environ["TRITON_INTERPRET"] = "1"
import torch
from pipeline.gpu.kernels.interpreter import prepare
prepare(torch.device("cpu"))
import bench.checks.correctness, bench.checks.machine, bench.checks.parts, bench.checks.serving
import bench.checks.speed, bench.checks.timers, pipeline.gpu.kernels.ops
"""
SAID = {"part": "machine", "name": "x", "result": "y", "values": {"bytes_per_s": 7.0, "flops_per_s": 9.0}}
"""A row, as a part says it."""


def check_of(script: str, budget: float = 30.0) -> Check:
    return Check([sys.executable, "-c", script], sys.executable, {"machine": budget, "other": budget})


@isolated
def test_the_parts_over_kernels() -> None:
    """In a process that has the interpreter already."""
    from bench.checks import correctness, machine, speed
    from bench.checks.bench import Bench
    from bench.checks.timers import new_timer
    from pipeline.gpu.kernels.catalogue import KERNELS

    device = torch.device("cpu")
    bench = Bench(device, new_timer(device), True, Rates(1e12, 1e15))
    with torch.inference_mode():
        rows = [*machine.run(bench), *correctness.run(bench), *speed.run(bench)]
    assert all(row.ok for row in rows)
    assert {row.part for row in rows} == {"machine", "correctness", "kernels"}
    assert {row.name.split()[0] for row in rows if row.part == "correctness"} == {*KERNELS, "a"}
    assert all("rival_ms" in row.values for row in rows if "x torch" in row.result)


@pytest.mark.nightly
def test_whole_and_tiny(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, SCRIPT, "--tiny", "--out", str(out)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_bytes())
    rows = msgspec.convert(found["rows"], list[Row])
    assert found["machine"]["torch"] == torch.__version__
    assert {row.part.replace(" ", "-") for row in rows} == set(PARTS)
    assert all(row.ok and row.line in done.stdout for row in rows)
    assert f"{len(rows)} results on none, 0 not ok" in done.stdout


def test_needs_no_more_than_it_says() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "torch sees no GPU" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_part_that_fails_does_not_stop_the_next() -> None:
    row = json.dumps(SAID)
    check = check_of(f"import sys; print({row!r}, flush=True); sys.exit('CUDA error: all is lost')")
    check.run("machine")
    check.run("other")
    assert [row.ok for row in check.rows] == [True, False, True, False]
    assert "status 1 | CUDA error: all is lost" in check.rows[1].result
    assert "4 results" in check.table() and "2 not ok" in check.table()


def test_a_part_that_takes_too_long_is_ended() -> None:
    check = check_of("import time; time.sleep(60)", budget=0.5)
    check.run("other")
    assert not check.rows[0].ok and "ended after" in check.rows[0].result


def test_rates_go_to_the_parts_that_follow() -> None:
    check = check_of(f"import json, sys; print({json.dumps(SAID)!r})")
    check.run("machine")
    assert check.rows[0].ok and check._rates == Rates(7.0, 9.0)
    assert (check._rates.floor_ms(14, 9), check._rates.floor_ms(7, 27)) == (2000.0, 3000.0)
