"""The simulator against a whole server whose device sleeps by a formula: real sockets, a real load generator.

What is compared is the event model - credits, flushing, the host's part - fitted from what the server itself
has recorded. Seconds are loose here, for the machine is shared; the real model is compared by hand (docs).
"""

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.__main__ import main
from pipeline.checkpoint.card import ModelCard
from pipeline.messages import DeviceReady, StepPlan
from pipeline.runtime.testing import FakeRunner
from tests.e2e.world import Server, serving

CAPACITY = DeviceReady(num_blocks=512, block_size=16, max_num_seqs=6, max_num_batched_tokens=128)
BASE_S, TOKEN_S = 0.030, 0.0003
NUM_REQUESTS = 40


def sleep(plan: StepPlan) -> None:
    time.sleep(BASE_S + TOKEN_S * len(plan.token_ids))


def write_trace(path: Path) -> None:
    """Requests of 10 to 150 tokens in and 2 to 30 out, nine a second in bursts: some have to wait."""
    draw = random.Random(5)
    rows, at_s = ["TIMESTAMP,ContextTokens,GeneratedTokens"], 0.0
    for _ in range(NUM_REQUESTS):
        at_s += draw.expovariate(9.0)
        rows.append(f"2023-11-16 18:15:{at_s:010.7f},{draw.randint(10, 150)},{draw.randint(2, 30)}")
    path.write_text("\n".join(rows) + "\n")


async def replay(server: Server, trace: Path, result: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadgen", "replay", "--trace", str(trace), "--url", server.url,
        "--tokens-per-word", "1", "--json", str(result),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()


async def record(card: ModelCard, folder: Path) -> None:
    """Replay the trace; what the client saw and what the server recorded, as files."""
    write_trace(folder / "trace.csv")
    async with serving(card, lambda: FakeRunner(CAPACITY, before_step=sleep)) as server:
        await replay(server, folder / "trace.csv", folder / "result.json")
        evidence = server.pipeline.sampler.evidence(120)
        (folder / "evidence.json").write_bytes(msgspec.json.encode(evidence))


@pytest.mark.timeout(120)
def test_simulated_and_measured_agree(
    fake_card: ModelCard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(record(fake_card, tmp_path))
    capsys.readouterr()
    measured, result = str(tmp_path / "measured.json"), str(tmp_path / "result.json")
    fit = [
        "bench",
        "execute",
        "--fake",
        "--fit",
        str(tmp_path / "evidence.json"),
        "--out",
        measured,
        "--json",
    ]
    assert main(fit) == 0
    assert json.loads(capsys.readouterr().out)["residual"]["median"] < 0.15
    assert main(["simulate", "--against", result, "--device", measured, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    errors: dict[str, Any] = {each["name"]: each["error"] for each in values["comparisons"]}
    assert values["cells"][0]["num_finished"] == NUM_REQUESTS and not values["notes"]
    checked = ("TTFT mean, ms", "ITL mean, ms", "TPOT p50, ms", "E2E mean, ms", "output tokens/s")
    assert all(abs(errors[name]) < 0.25 for name in checked), errors
