"""The OpenAPI document is valid, and the server holds to it: schemathesis finds nothing."""

import asyncio
import sys
from pathlib import Path

import aiohttp
import pytest
from openapi_spec_validator import validate

from pipeline.checkpoint.fake import byte_card
from pipeline.runtime.testing import FakeRunner
from tests.e2e.saying import ROOM
from tests.e2e.world import serving


def test_the_document_is_valid_and_has_what_the_index_lists() -> None:
    async def main() -> None:
        async with (
            serving(byte_card(512), lambda: FakeRunner(ROOM)) as server,
            aiohttp.ClientSession() as session,
        ):
            async with session.get(f"{server.url}/openapi.json") as answer:
                document = await answer.json()
            async with session.get(server.url) as answer:
                listed = (await answer.json())["endpoints"]
        validate(document)
        told = {f"{method.upper()} {path}" for path, ways in document["paths"].items() for method in ways}
        others = {line for line in listed if line.partition("?")[0] not in told}
        assert others == {
            "GET /v1/stream (websocket)",
            "GET /openapi.json",
            "GET /metrics",
            "GET /debug/trace?last_s=30",
        }

    asyncio.run(main())


CHECKS = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "503"]
"""
"""503: what a request is told whose own `patience_ms` is over; of 2,048 prompts at once, some are."""


async def fuzz(folder: Path, seed: int, num_examples: int, phases: str) -> str:
    """What schemathesis found; empty: nothing."""
    (folder / "schemathesis.toml").write_text(CHECKS)
    async with serving(byte_card(512), lambda: FakeRunner(ROOM)) as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"),
            *("--seed", str(seed), "-n", str(num_examples), "--phases", phases),
            # what fits the schemas can still be refused: too long together, no chat template, a busy server
            *("--exclude-checks", "positive_data_acceptance"),
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await asyncio.wait_for(process.communicate(), 280)
        await server.rest(20)
    return "" if process.returncode == 0 else said.decode()[-10_000:]


def test_fuzz_briefly(tmp_path: Path) -> None:
    assert asyncio.run(fuzz(tmp_path, 1, 3, "fuzzing")) == ""


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fuzz(tmp_path: Path, seed: int) -> None:
    assert asyncio.run(fuzz(tmp_path, seed, 100, "coverage,fuzzing")) == ""
