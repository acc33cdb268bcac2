"""`stageline swap` on a running server: who may, what is refused, what is rolled back, what is seen of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from pipeline import admin
from pipeline import config as configuration
from pipeline.__main__ import main as stageline
from pipeline.admin import AdminServer
from pipeline.admin_token import authorization, token_path
from pipeline.checkpoint.fake import byte_card
from tests.e2e.swapped import fake_text, streaming
from tests.e2e.test_swap import PacedRunner
from tests.e2e.world import Server, serving

HERE = "tests.e2e.stages_to_swap"
ALLOWED = "[admin]\nport = 0\nallow_swap = true"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@asynccontextmanager
async def swappable(toml: str = ALLOWED) -> AsyncIterator[tuple[Server, AdminServer]]:
    config = configuration.loads(toml, "test.toml")
    async with (
        serving(byte_card(), PacedRunner, "[stages.filter]\n") as server,
        admin.beside(server.pipeline, config, byte_card()) as page,
    ):
        assert page is not None
        yield server, page


async def swap(page: AdminServer, *args: str) -> int:
    return await asyncio.to_thread(stageline, ["swap", *args, "--url", page.url])


def test_a_swap_by_the_command_under_streams(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with swappable() as (server, page):
            async with streaming(server.url, 4, 80, fake_text):
                assert await swap(page, "detokenize", "pipeline.stages.detokenize:Detokenize") == 0
                assert "detokenize is pipeline.stages.detokenize:Detokenize now" in capsys.readouterr().out
            await server.rest()
            assert await seen(page) == ["swapped"]

    asyncio.run(main())


@pytest.mark.nightly
def test_one_of_another_state_is_rehearsed_and_waits(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with swappable() as (server, page):
            async with streaming(server.url, 4, 80, fake_text):
                assert await swap(page, "filter", f"{HERE}:Calm") == 0
                assert f"filter is {HERE}:Calm now" in capsys.readouterr().out
            await server.rest()

    asyncio.run(main())


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["crash", "wait", "compute"])
def test_one_that_fails_in_the_server_alone_is_rolled_back(
    how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with swappable() as (server, page):
            before = list(server.pipeline.stages["detokenize"])
            async with streaming(server.url, 4, 80, fake_text):
                options = ("--options", "at=4", f"how={how}")
                assert await swap(page, "detokenize", f"{HERE}:OnlyLive", *options) == 1
                assert "rolled_back: " in capsys.readouterr().err
            assert server.pipeline.stages["detokenize"] == before
            await server.rest()
            assert await seen(page) == ["rolled_back"]

    asyncio.run(main())


@pytest.mark.nightly
def test_an_option_that_it_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with swappable() as (_, page):
            builtin = "pipeline.stages.detokenize:Detokenize"
            assert await swap(page, "detokenize", builtin, "--options", "speed=9") == 1
            assert "stages.detokenize.options.speed: no such key" in capsys.readouterr().err

    asyncio.run(main())


@pytest.mark.nightly
def test_a_shadow_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with swappable() as (server, page), streaming(server.url, 4, 80, fake_text):
            assert await swap(page, "detokenize", f"{HERE}:Loud", "--shadow", "0.5") == 1
            told = capsys.readouterr()
            assert "text, after" in told.out and "differences (a: the running one" in told.err
            builtin = "pipeline.stages.detokenize:Detokenize"
            assert await swap(page, "detokenize", builtin, "--shadow", "0.5") == 0
            assert "no difference" in capsys.readouterr().out

    asyncio.run(main())


async def seen(page: AdminServer) -> list[str]:
    """How the swaps of detokenize ended, by the trace; the metrics say the same."""
    async with aiohttp.ClientSession(page.url) as session:
        async with session.get("/debug/trace?last_s=600") as response:
            events = (await response.json())["traceEvents"]
        endings = [each["args"]["ending"] for each in events if each.get("name") == "swap"]
        async with session.get("/metrics") as response:
            text = await response.text()
    for ending in endings:
        assert f'stageline_stage_swaps_total{{stage="detokenize",ending="{ending}"}} 1.0' in text
    return endings


REFUSED = [
    (f"{HERE}:Crashing", "in its rehearsal: ValueError: no such thing"),
    (f"{HERE}:Exiting", "in its rehearsal: SystemExit: 5"),
    (f"{HERE}:Talking", "it sent a str to filter, which takes TextBatch"),
    (f"{HERE}:Deaf", "its `takes` must also have TokenBatch"),
    (f"{HERE}:Nobody", "cannot be imported"),
    ("json:JSONDecoder", "must be a subclass of pipeline.runtime.stage.Stage"),
    ("pipeline.stages.sample:Sample", "its `takes` must also have TokenBatch"),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("use", "reason"), [*REFUSED, (f"{HERE}:Hanging", "it took longer than 2 s")])
def test_what_is_refused(use: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with swappable() as (server, page):
            before = list(server.pipeline.stages["detokenize"])
            async with streaming(server.url, 4, 80, fake_text):
                assert await swap(page, "detokenize", use) == 1
            assert reason in capsys.readouterr().err
            assert server.pipeline.stages["detokenize"] == before
            await server.rest()

    asyncio.run(main())


def test_what_is_wrong_with_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with swappable() as (_, page):
            detokenize = "pipeline.stages.detokenize:Detokenize"
            for stage, use, reason in (
                ("nothing", detokenize, "there is no stage 'nothing'"),
                ("ingress", "pipeline.stages.ingress:Ingress", "ingress has no State"),
                ("stream", "no path", "The body is wrong"),
            ):
                assert await swap(page, stage, use) == 1
                assert reason in capsys.readouterr().err

    asyncio.run(main())


def test_who_may_not(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        body = msgspec.json.encode({"use": "pipeline.stages.sample:Sample"})
        async with swappable() as (_, page), aiohttp.ClientSession(page.url) as session:
            path = token_path(page.port)
            assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o077 == 0
            for header in ({}, {"Authorization": "Bearer no"}):
                async with session.post("/api/stages/sample/swap", data=body, headers=header) as response:
                    assert response.status == 401 and response.headers["WWW-Authenticate"] == "Bearer"
            async with session.get("/api/stages") as response:
                assert response.status == 401
            shown = {"Authorization": authorization(page.port)}
            async with session.get("/api/stages", headers=shown) as response:
                stages = {each["name"]: each for each in await response.json()}
                assert stages["ingress"]["why_not"] and not stages["stream"]["why_not"]
                assert stages["filter"]["state"] == "pipeline.core.text_state:FilterState"
            path.unlink()
            assert await swap(page, "sample", "pipeline.stages.sample:Sample") == 1
            assert "allow_swap = true" in capsys.readouterr().err
        assert not path.exists()

    asyncio.run(main())


def test_by_default_nobody_may() -> None:
    async def main() -> None:
        async with swappable("[admin]\nport = 0") as (_, page), aiohttp.ClientSession(page.url) as session:
            assert not token_path(page.port).exists()
            async with session.post("/api/stages/sample/swap", data=b"{}") as response:
                assert response.status == 403 and (await response.json())["error"]["code"] == "swap_off"

    asyncio.run(main())
