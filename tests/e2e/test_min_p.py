"""The worked example: examples/min_p takes the sample stage's place by config alone."""

import asyncio
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from pipeline.checkpoint.card import ModelCard
from tests.e2e.world import serving

EXAMPLE = Path("examples/min_p/config.toml")
DEVICE = '\n[device]\ndevice = "cpu"\nnum_blocks = 64\n'
REQUEST = {"prompt": "The capital of", "max_tokens": 12, "temperature": 2.0, "ignore_eos": True}


@pytest.mark.model
def test_the_example_swaps_one_stage_of_a_running_server(model_card: ModelCard) -> None:
    async def texts(toml: str) -> set[str]:
        async with serving(model_card, toml=toml + DEVICE) as server, aiohttp.ClientSession() as session:
            answers = []
            for seed in range(4):
                body = REQUEST | {"seed": seed}
                async with session.post(f"{server.url}/v1/completions", json=body) as response:
                    answers.append((await response.json())["choices"][0]["text"])
            return set(answers)

    strict = EXAMPLE.read_text().replace("min_p = 0.2", "min_p = 1.0")
    assert strict != EXAMPLE.read_text()
    assert len(asyncio.run(texts(""))) == 4, "at temperature 2, four seeds wander apart"
    assert len(asyncio.run(texts(strict))) == 1, "min_p = 1 leaves the most probable token alone"


def test_check_config_accepts_the_example_and_names_its_faults(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipeline", "check-config", "--config"]
    good = subprocess.run([*command, str(EXAMPLE)], capture_output=True, text=True, check=False)
    assert good.returncode == 0 and "MinPSample" in good.stdout
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(EXAMPLE.read_text().replace("0.2", "2"))
    bad = subprocess.run([*command, str(wrong)], capture_output=True, text=True, check=False)
    assert bad.returncode == 2 and "stages.sample.options.min_p = 2" in bad.stderr
