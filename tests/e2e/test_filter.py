"""The content filter in a whole server: streamed or not, both doors, by key."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pipeline import assemble
from pipeline import config as configuration
from pipeline.checkpoint.card import ModelCard
from pipeline.core.keys import fingerprint
from pipeline.errors import ConfigError
from tests.e2e.saying import SayingRunner
from tests.e2e.world import Server, serving

pytest.importorskip("re2", reason="google-re2 is not installed (the extra `filter`)")

TEXTS = {
    1: "It is a bad" + "word, and one more BADWORD. 12345678 is a number.",
    2: "First this, then the secret plan, then more that nobody hears.",
    3: "Only bad and wor",
}
OUT = {
    1: ("It is a ***, and one more ***. # is a number.", "stop"),
    2: ("First this, then the ", "content_filter"),
    3: ("Only bad and wor", "stop"),
}
TOML = """
[stages.filter.options]
rules = [
    { terms = ["badword"], replacement = "***" },
    { pattern = '\\d{6,}', replacement = "#" },
    { terms = ["secret plan"], action = "stop" },
]
[stages.stream.options]
flush_tokens = 1
"""


async def whole(session: aiohttp.ClientSession, url: str, seed: int, **headers: str) -> tuple[str, str]:
    body = {"prompt": "Say it", "seed": seed, "max_tokens": 100}
    async with session.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
        choice = (await answer.json())["choices"][0]
        return choice["text"], choice["finish_reason"]


async def streamed(session: aiohttp.ClientSession, url: str, seed: int) -> tuple[str, str]:
    text, reason = "", ""
    body = {"prompt": "Say it", "seed": seed, "max_tokens": 100, "stream": True}
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {"):
                choice = json.loads(line[6:])["choices"][0]
                text, reason = text + choice["text"], choice["finish_reason"] or reason
                assert "badword" not in text.lower()
    return text, reason


async def framed(session: aiohttp.ClientSession, url: str, seed: int) -> tuple[str, str]:
    text = ""
    async with session.ws_connect(f"{url}/v1/stream") as ws:
        await ws.send_json(
            {"type": "generate", "id": "a", "prompt": "Say it", "seed": seed, "max_tokens": 100}
        )
        while (frame := await ws.receive_json(timeout=10))["type"] != "done":
            text += frame.get("text", "")
        return text, frame["finish_reason"]


async def check(server: Server, session: aiohttp.ClientSession) -> None:
    for say in (whole, streamed, framed):
        said = await asyncio.gather(*(say(session, server.url, seed) for seed in (1, 2, 3) for _ in range(3)))
        assert said == [OUT[seed] for seed in (1, 2, 3) for _ in range(3)], say


def test_the_verdict_is_the_same_on_every_door(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with serving(fake_card, lambda: SayingRunner(TEXTS), TOML) as server:
            async with aiohttp.ClientSession() as session:
                await check(server, session)
            await server.rest()
            stage: Any = server.pipeline.stages["filter"][0]
            assert stage.num_live == 0

    asyncio.run(main())


def test_rules_by_key(fake_card: ModelCard, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text("".join(f'[{name}]\nsha256 = "{fingerprint(name)}"\n' for name in ("child", "adult")))
    rules = 'rules = [{ terms = ["badword"], replacement = "***", tenants = ["child"] }]'
    toml = f'[stages.ingress.options]\nkeys_file = "{keys}"\n[stages.filter.options]\n{rules}\n'

    async def main() -> None:
        async with (
            serving(fake_card, lambda: SayingRunner(TEXTS), toml) as server,
            aiohttp.ClientSession() as session,
        ):
            child, adult = [
                await whole(session, server.url, 1, Authorization=f"Bearer {name}")
                for name in ("child", "adult")
            ]
        assert adult == (TEXTS[1], "stop")
        assert child == (TEXTS[1].replace("badword", "***").replace("BADWORD", "***"), "stop")

    asyncio.run(main())


def test_without_its_table_there_is_no_such_stage(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with serving(fake_card, lambda: SayingRunner(TEXTS)) as server:
            assert "filter" not in server.pipeline.stages
            async with aiohttp.ClientSession() as session:
                assert await whole(session, server.url, 1) == (TEXTS[1], "stop")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ("{ action = 'stop' }", "needs either `terms` or `pattern`"),
        ("{ pattern = 'x*' }", "matches the empty text"),
        ("{ pattern = '(?<!a)b' }", "is not possible"),
        ("{ terms = ['a'], action = 'warn' }", r"rules = .*must be one of"),
    ],
)
def test_a_rule_that_cannot_be(fake_card: ModelCard, rule: str, fault: str) -> None:
    config = configuration.loads(f"[stages.filter.options]\nrules = [{rule}]", "my.toml")
    with pytest.raises(ConfigError, match=fault):
        assemble.build(assemble.check(config), fake_card)
