"""`stageline memory`: what it says is what a server then has."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from pipeline.__main__ import main
from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import describe
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import load_runner
from tests.e2e.scraped import scrape
from tests.e2e.world import serving
from tests.tiny_models import random_tensors, write_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny"), random_tensors())


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    assert main(["memory", *argv, "--json"]) == 0
    said: dict[str, object] = json.loads(capsys.readouterr().out)
    return said


@pytest.mark.parametrize("kv_memory", [100_000, "1MiB", "1GiB"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_as_a_runner_has_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kv_memory: int | str, dtype: str
) -> None:
    config = tmp_path / "config.toml"
    size = f'"{kv_memory}"' if isinstance(kv_memory, str) else kv_memory
    config.write_text(f'[model]\nreference = "{folder}"\n[device]\ndtype = "{dtype}"\nkv_memory = {size}\n')
    plan = told(capsys, "--config", str(config), "--context", "100")["plan"]
    options = RunnerOptions(device="cpu", backend="torch", dtype=dtype, kv_memory=kv_memory)  # type: ignore[arg-type]
    runner = load_runner(describe(folder, str(folder)), options)
    assert isinstance(plan, dict) and plan["num_blocks"] == runner.capacity.num_blocks
    kv_bytes = sum(side.nbytes for kv in runner._kv_cache for side in kv)
    assert plan["kv_bytes"] == kv_bytes and plan["block_bytes"] == kv_bytes // plan["num_blocks"]


@pytest.mark.model
def test_as_a_server_with_the_real_model_has_it(
    model_card: ModelCard, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(capsys, "--model", model_card.reference, "--context", "2048", "--kv-memory", "200MiB")
    plan = said["plan"]
    assert isinstance(plan, dict)

    async def blocks() -> float:
        toml = '[device]\ndevice = "cpu"\nkv_memory = "200MiB"\n'
        async with serving(model_card, toml=toml) as server, aiohttp.ClientSession() as session:
            return (await scrape(session, server)).total("stageline_kv_blocks")

    assert plan["num_blocks"] == asyncio.run(blocks()) == 200 * 2**20 // (16 * 2 * 30 * 3 * 64 * 2)


def test_what_fits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--model", str(folder), "--context", "128", "--output", "64", "--concurrency", "10"]
    plan = told(capsys, *argv, "--kv-memory", "163840")["plan"]  # 40 blocks of 4,096 bytes
    assert isinstance(plan, dict) and plan["num_blocks"] == 40
    assert plan["fits"] == {
        "paged": 5,
        "paged_half_way": 6,
        "contiguous_request": 5,
        "contiguous_model": 2,
    }
    assert plan["needed_blocks"] == 80 and plan["needed_bytes"] == 80 * 4096
    assert main(["memory", *argv]) == 0
    assert "paged, at full" in capsys.readouterr().out


def test_a_fraction_is_of_this_computer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = told(capsys, "--model", str(folder), "--context", "128", "--kv-memory", "0.00001")
    plan, free = said["plan"], said["free_bytes"]
    assert isinstance(plan, dict) and isinstance(free, int)
    assert plan["kv_bytes"] == pytest.approx(free * 0.00001, abs=8192)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--context", "300"], "--context 300: the model's length is 256 tokens"),
        (["--context", "10", "--output", "10"], "must be less than --context 10"),
        (["--context", "10", "--kv-memory", "some"], 'kv_memory = "some" is not a size'),
        (["--context", "10", "--kv-memory", "100"], "one block takes 4,096 bytes, and it may have 100"),
        (["--context", "10", "--block-size", "24"], "device.block_size = 24"),
    ],
)
def test_what_cannot_be_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert main(["memory", "--model", str(folder), *argv]) in (1, 2)
    assert message in capsys.readouterr().err


def test_a_size_may_be_that_of_another_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    long = write_folder(tmp_path / "long", config={"max_position_embeddings": 2**20})
    plan = told(capsys, "--model", str(long), "--context", "1000000", "--kv-memory", "10GiB")["plan"]
    assert isinstance(plan, dict) and plan["kv_bytes"] == 10 * 2**30
    assert told(capsys, "--model", str(long), "--context", "9", "--kv-memory", "800GB")["plan"]


def test_it_needs_no_torch(folder: Path) -> None:
    program = (
        "import sys; from pipeline.__main__ import main;"
        f"main(['memory', '--model', {str(folder)!r}, '--context', '100']);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0
