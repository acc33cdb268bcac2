"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer, for each instruction set."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.gpu.host.build import Build, find_compiler, provide_library
from tests.gpu.host.conftest import WIDTHS

ROOT = Path(__file__).parents[3]
FLAGS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wno-psabi")


def sanitized(width: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    compiler = find_compiler()
    library = provide_library(Build(compiler, (*WIDTHS[width], *FLAGS)))
    runtime = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(runtime).is_absolute():
        pytest.skip(f"{compiler} has no libasan.so to preload")
    env = os.environ | {
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(ROOT),
    }
    script = str(Path(__file__).with_name("sanitized.py"))
    return subprocess.run(
        [sys.executable, script, str(library), *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_small_shapes_are_clean(width: str) -> None:
    done = sanitized(width)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split()[::2] == [
        "run_linears",
        "run_blocks",
        "run_attention",
        "run_rows",
        "run_sampling",
        "run_steps",
    ]


def test_a_fault_would_be_found() -> None:
    done = sanitized("native", "with a fault")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
