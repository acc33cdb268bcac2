"""The websocket's examples do what docs/websocket.md says of them: the client in Python, and the page."""

import asyncio
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from pipeline.checkpoint.fake import byte_card
from tests.e2e.browser import Page, browsing
from tests.e2e.saying import SayingRunner
from tests.e2e.world import Server, serving

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOTS = os.environ.get("STAGELINE_SHOTS")
"""A folder for what the browser showed."""
ANSWER = "There are as many answers as there are askers, and each comes a word at a time. " * 2
THOUGHT = "Somebody asks."


class Reciting(SayingRunner):
    """Says the same to everybody, a byte every 4 ms."""

    def __init__(self, text: str) -> None:
        super().__init__({})
        self._texts = defaultdict(text.encode)
        self._before_step = lambda plan: time.sleep(0.004)


async def example(server: Server, *args: str) -> str:
    command = [sys.executable, str(EXAMPLES / "websocket_client.py"), "Why?", "--url", server.url]
    process = await asyncio.create_subprocess_exec(
        *command, "--max-tokens", "1000", *args, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0
    return said.decode()


def test_the_client_streams_resumes_and_cancels() -> None:
    async def main() -> None:
        async with serving(byte_card(), lambda: Reciting(ANSWER)) as server:
            whole, broken, cut = await asyncio.gather(
                example(server),
                example(server, "--lose-after", "20"),
                example(server, "--cancel-after", "20"),
            )
            assert whole == broken == f"{ANSWER}\n stop\n"
            assert cut.endswith("\n cancelled\n") and ANSWER.startswith(cut.partition("\n")[0])
            await server.rest()

    asyncio.run(main())


async def ask(page: Page, text: str) -> None:
    await page.run("document.getElementById('prompt').focus()")
    await page.type(text)
    await page.press("Enter")


async def shoot(page: Page, name: str) -> None:
    if SHOTS:
        shot = await page.shot(whole=False)
        await asyncio.to_thread(Path(SHOTS, f"{name}.png").write_bytes, shot)


async def visit(server: Server, page: Page) -> None:
    last = "document.querySelector('#log p:last-child {}').textContent"
    text, thought = last.format(".text"), last.format(".reasoning")
    is_free = "!document.getElementById('send').disabled"
    await page.until("document.getElementById('state').textContent === 'fake'")
    await ask(page, "Why?")
    await page.until(f"{text}.length > 10")
    lose_all(server)
    await shoot(page, "chat-reconnecting")
    await page.until(is_free)
    assert (await page.run(text), await page.run(thought)) == (ANSWER, THOUGHT)
    await shoot(page, "chat-answered")
    await ask(page, "And then?")
    await page.until(f"{text}.length > 10")
    await page.run("document.getElementById('stop').click()")
    await page.until(is_free)
    said = await page.run(text)
    assert ANSWER.startswith(said) and said != ANSWER
    await shoot(page, "chat-stopped")
    assert not [fault for fault in page.faults if "WebSocket connection" not in fault]


def test_the_page_streams_resumes_and_cancels() -> None:
    """From disk, so its origin is `null`."""
    toml = '[stages.ingress.options]\ncors_origins = ["null"]\nreasoning = {}\n'

    async def main() -> None:
        async with serving(
            byte_card(), lambda: Reciting(f"<think>{THOUGHT}</think>{ANSWER}"), toml
        ) as server:
            async with browsing() as browser:
                url = f"{(EXAMPLES / 'chat.html').as_uri()}?url={server.url.replace('http', 'ws')}/v1/stream"
                await visit(server, await browser.open(url, 800, 600))
            await server.rest()

    asyncio.run(main())


def lose_all(server: Server) -> None:
    ingress: Any = server.pipeline.stages["ingress"][0]
    for socket in ingress._websocket.sockets:
        socket.transport.abort()
