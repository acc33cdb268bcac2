"""The live page in a real browser, beside a whole server: does it show what happens, can it be used?"""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from pipeline import admin
from pipeline import config as configuration
from pipeline.admin import AdminServer
from pipeline.checkpoint.fake import byte_card
from pipeline.embedded import Engine
from pipeline.messages import SEGMENTS, StepPlan
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.swapped import USUAL
from pipeline.runtime.testing import FakeRunner
from pipeline.swapping import Order, Swapper
from pipeline.topology import Lane
from tests.e2e.browser import Page, browsing
from tests.e2e.world import Server, serving

STAGES = ["ingress", "tokenize", "schedule", "execute", "sample", "detokenize", "stream"]
BUSY = "document.querySelector('[data-stage=execute]').dataset.use"
RATE = "document.querySelector('[data-stage=execute]').getAttribute('aria-label')"
STATE = "document.getElementById('state').dataset.state"
STATUS = "document.getElementById('play-status').textContent"
ANSWER = "document.getElementById('answer').textContent"
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
IS_DRAWN = """[...document.querySelectorAll('.chart canvas')].every(canvas =>
  canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean))"""
TEXTS_OVERLAP = """(() => {
  for (const stage of document.querySelectorAll('.stage')) {
    const longest = ['100 %', '1024/1024', '1,024/s', '10.2 ms', '10.2 ms'];
    stage.querySelectorAll('.value, .share').forEach(text => { text.textContent = longest.shift(); });
  }
  const boxes = [...document.querySelectorAll('#picture text')].filter(text => text.textContent)
    .map(text => [text.textContent, text.getBoundingClientRect()]);
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([, q]) => p.left < q.right - 1 &&
    q.left < p.right - 1 && p.top < q.bottom - 4 && q.top < p.bottom - 4).map(([b]) => `${a} / ${b}`));
})()"""

SWAPS = """[...document.querySelectorAll('#swaps-list .event')].map(event =>
  [...event.querySelectorAll('.who, .classes, .outcome, .took, .why')].map(part => part.textContent))"""
IS_MARKED = """(id, colour) => {
  const pixel = document.createElement('canvas').getContext('2d');
  pixel.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(colour);
  pixel.fillRect(0, 0, 1, 1);
  const [r, g, b] = pixel.getImageData(0, 0, 1, 1).data;
  const canvas = document.querySelector(`#${id} canvas`);
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return data.some((_, i) => i % 4 === 0 && data[i] === r && data[i + 1] === g && data[i + 2] === b);
}"""


def marks_of(chart: str) -> str:
    return f"document.querySelector('#{chart} canvas').getAttribute('aria-label').split('; ')[1]"


IS_HIDDEN = """Object.defineProperty(document, 'hidden', {{ value: {is_hidden}, configurable: true }});
document.dispatchEvent(new Event('visibilitychange'))"""


def slow(plan: StepPlan) -> None:
    time.sleep(0.004)


@asynccontextmanager
async def watched(
    port: int = 0, *, is_open: bool = True, toml: str = ""
) -> AsyncIterator[tuple[Server, AdminServer]]:
    """A server whose every step takes 4 ms, and its admin port, which has heard of the door or not yet."""
    card = byte_card()
    config = configuration.loads(f"[admin]\nport = {port}", "test.toml")
    async with (
        serving(card, lambda: FakeRunner(before_step=slow), toml) as server,
        admin.beside(server.pipeline, config, card) as page,
    ):
        assert page is not None
        if is_open:
            page.door_is_open()
        yield server, page


async def ask(server: Server, max_tokens: int) -> None:
    body: dict[str, Any] = {"prompt": "tell me " * 20, "max_tokens": max_tokens, "ignore_eos": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}/v1/completions", json=body) as response,
    ):
        assert response.status == 200
        await response.read()


async def stage_names(page: Page) -> Any:
    return await page.run("[...document.querySelectorAll('.stage')].map(stage => stage.dataset.stage)")


async def tab_to(page: Page, selector: str) -> None:
    for _ in range(40):
        await page.press("Tab")
        if await page.run(f"document.activeElement.matches('{selector}')"):
            return
    pytest.fail(f"Tab does not reach {selector}")


@pytest.mark.timeout(120)
def test_it_shows_a_server_under_load() -> None:
    async def main() -> None:
        async with watched() as (server, live), browsing() as browser:
            page = await browser.open(live.url, 1440, 900)
            await page.until(f"{STATE} === 'ready'")
            assert await stage_names(page) == STAGES
            assert await page.run("document.querySelector('#waterfall .empty') !== null")
            assert await page.run("document.querySelectorAll('.link').length") == 16  # with the clients' two
            assert await page.run(BUSY) == "0" and "queue 0 of 8" in await page.run(RATE)

            await asyncio.gather(*(ask(server, 40) for _ in range(4)))
            load = asyncio.gather(*(ask(server, 800) for _ in range(4)))
            await page.until(f"{BUSY} >= '2'")  # one step after the other
            seen = await page.run(RATE)
            await page.until(f"{RATE} !== {seen!r}")  # and the numbers move
            assert await page.run("document.querySelectorAll('#waterfall .bar').length") == 4
            assert await page.run("document.querySelectorAll('#waterfall .bar .first-token').length") == 4
            assert await page.run("document.querySelectorAll('#waterfall rect.fill-execute').length") >= 4
            assert "of 4,096 used" in await page.run("document.getElementById('blocks-note').textContent")
            await page.until("document.getElementById('itl-note').textContent.includes('median')")
            assert await page.run(IS_DRAWN)
            await page.until("document.querySelector('#verdict .judged') !== null")
            assert await page.run(TEXTS_OVERLAP) == [] and await page.run(SIDEWAYS) == 0

            for width in (1100, 390, 360):
                await page.resize(width, 844)
                await page.until(f"document.querySelector('#picture svg').width.baseVal.value < {width}")
                assert await page.run(TEXTS_OVERLAP) == []
                assert await page.run(SIDEWAYS) == 0 and await stage_names(page) == STAGES
            await load
            assert page.faults == []

    asyncio.run(main())


@pytest.mark.nightly
@pytest.mark.timeout(120)
@pytest.mark.parametrize("graph", ["two_pools.graph:TWO_POOLS", "house_rules.graph:HOUSE_RULES"])
def test_it_draws_other_graphs(graph: str) -> None:
    toml = f'[topology]\nuse = "examples.{graph}"\n[stages.filter]\n'

    async def main() -> None:
        async with watched(toml=toml) as (server, live), browsing() as browser:
            page = await browser.open(live.url, 1440, 900)
            await page.until(f"{STATE} === 'ready'")
            await ask(server, 10)
            names = list(server.pipeline.graph.names)
            for width in (1440, 1100, 390):
                await page.resize(width, 844)
                await page.until(f"document.querySelector('#picture svg').width.baseVal.value < {width}")
                assert await stage_names(page) == names
                assert await page.run(TEXTS_OVERLAP) == [] and await page.run(SIDEWAYS) == 0
                for link in server.pipeline.graph.links:
                    if link.lane is Lane.DATA:
                        title = f"{link.source} to {link.target}: "
                        assert await page.run(f"document.body.innerHTML.includes('{title}')"), title
            assert page.faults == []

    asyncio.run(main())


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_beside_an_embedded_pipeline_there_is_no_playground() -> None:
    async def main() -> None:
        config = configuration.loads('[admin]\nport = 0\n[device]\nplacement = "thread"', "test.toml")
        async with (
            Engine(config, byte_card(), RunnerFactory(FakeRunner)) as engine,
            admin.beside(engine.pipeline, config, byte_card()) as live,
            browsing() as browser,
        ):
            assert live is not None
            live.door_is_open()
            page = await browser.open(live.url, 1280, 900)
            await page.until(f"{STATE} === 'ready'")
            await engine.generate("Hi", max_tokens=4)
            await page.until("document.querySelectorAll('#waterfall .bar').length === 1")
            assert await page.run("document.getElementById('playground').offsetParent === null")
            assert page.faults == []

    asyncio.run(main())


@pytest.mark.timeout(120)
def test_the_playground_answers_and_works_by_keyboard() -> None:
    async def main() -> None:
        async with watched() as (server, live), browsing() as browser:
            page = await browser.open(live.url, 1440, 900)
            await page.until(f"{STATE} === 'ready'")
            await page.press("Tab")  # the first stop leads past the picture
            assert await page.run("document.activeElement.className") == "skip"
            await page.press("Enter")
            await tab_to(page, "#prompt")
            await page.run("document.getElementById('prompt').value = ''")
            await page.type("How long is a river?")
            await page.press("Enter")
            await page.until(f"{STATUS}.startsWith('Done')")
            assert await page.run(f"{ANSWER}.length") == 96
            parts = await page.run("document.querySelectorAll('#play-detail .parts li').length")
            assert parts == len({name.partition(".")[0] for name in SEGMENTS})
            assert (
                await page.run("document.querySelectorAll('#play-waterfall rect.fill-execute').length") >= 1
            )
            assert await page.run("document.querySelectorAll('#play-waterfall .first-token').length") == 1

            await page.run("document.getElementById('max-tokens').value = 2000")
            await page.press("Enter")
            await page.until(f"{ANSWER}.length > 10")
            await page.press("Escape")
            await page.until(f"{STATUS} === 'Stopped.'")
            await page.until("document.querySelectorAll('#waterfall .bar').length === 2")
            await tab_to(page, "#waterfall .bar")
            chosen = await page.run("document.activeElement.dataset.id")
            await page.press("ArrowDown")
            assert await page.run("document.activeElement.dataset.id") not in (chosen, None)
            assert await page.run("document.querySelectorAll('#request-detail .parts li').length") == parts
            assert page.faults == []
        assert server.num_live == 0

    asyncio.run(main())


@pytest.mark.timeout(120)
def test_it_shows_swaps() -> None:
    """In a list, and on the time axis; also to a page that is opened later."""
    detokenize, failing = "pipeline.stages.detokenize:Detokenize", "tests.e2e.stages_to_swap:OnlyLive"

    async def main() -> None:
        async with watched() as (server, live), browsing() as browser:
            page = await browser.open(live.url, 1440, 900)
            await page.until(f"{STATE} === 'ready'")
            assert await page.run("document.getElementById('swaps').offsetParent === null")
            swapper = Swapper(server.pipeline, rehearses=False, bounds=replace(USUAL, trial_s=0.05))
            load = asyncio.gather(*(ask(server, 300) for _ in range(2)))
            await server.steps(5)
            tries = ((detokenize, "swapped"), (failing, "rolled_back"), ("no.such:Stage", "refused"))
            for number, (use, ending) in enumerate(tries, 1):
                assert (await swapper.swap("detokenize", Order(use))).ending == ending
                await page.until(f"{SWAPS}.length === {number}")
                if number == 1:
                    await page.until(f"{marks_of('itl')} === '1 swap of stages'")
                    assert await page.run(f"({IS_MARKED})('itl', '--good')")
            await load
            await page.until(
                f"{marks_of('itl')} === '3 swaps of stages' && {marks_of('ttft')} === '3 swaps of stages'"
            )
            assert await page.run(f"({IS_MARKED})('ttft', '--muted')")
            refused, rolled_back, swapped = await page.run(SWAPS)
            assert swapped[:3] == ["detokenize", f"{detokenize} \u2192 {detokenize}", "swapped"]
            assert re.fullmatch(r"handed over in [\d.]+ (\u00b5s|ms)", swapped[3])
            assert rolled_back[1:3] == [f"{detokenize} \u2192 {failing}", "rolled back"]
            assert "not on the bench" in rolled_back[4]
            assert refused[2:4] == ["refused", "not handed over"] and "no.such" in refused[4]
            for width in (390, 360):
                await page.resize(width, 844)
                assert await page.run(SIDEWAYS) == 0
            later = await browser.open(live.url, 1440, 900)
            await later.until(f"{SWAPS}.length === 3")
            assert await later.run(SWAPS) == [refused, rolled_back, swapped]
            assert page.faults == later.faults == []

    asyncio.run(main())


@pytest.mark.timeout(120)
def test_it_comes_back_after_a_restart() -> None:
    async def main() -> None:
        async with browsing() as browser:
            async with watched() as (_, live):
                page = await browser.open(live.url)
                await page.until(f"{STATE} === 'ready'")
            await page.until(f"{STATE} === 'lost'")
            assert live.url.removeprefix("http://") in await page.run(
                "document.getElementById('lost').innerText"
            )
            async with watched(live.port):
                await page.until(f"{STATE} === 'ready'", within_s=20)
                assert await page.run("document.getElementById('lost').hidden")
                await page.run("document.getElementById('send').click()")
                await page.until(f"{STATUS}.startsWith('Done')")  # at the new server's door
            assert [fault for fault in page.faults if "ERR_" not in fault] == []  # Chromium tells of the loss

    asyncio.run(main())


@pytest.mark.timeout(120)
def test_it_waits_for_the_door_and_rests_when_hidden() -> None:
    async def main() -> None:
        async with watched(is_open=False) as (_, live), browsing() as browser:
            page = await browser.open(live.url)
            await page.until(f"{STATE} === 'starting'")
            assert await page.run("document.getElementById('send').disabled")
            live.door_is_open()
            await page.until(f"{STATE} === 'ready' && !document.getElementById('send').disabled")

            await page.run(IS_HIDDEN.format(is_hidden="true"))
            await until_idle(live)
            await page.run(IS_HIDDEN.format(is_hidden="false"))
            async with asyncio.timeout(5):
                while live.api.feed.is_idle:  # noqa: ASYNC110 - it signals nobody
                    await asyncio.sleep(0.05)
            assert page.faults == []

    asyncio.run(main())


async def until_idle(live: AdminServer) -> None:
    async with asyncio.timeout(5):
        while not live.api.feed.is_idle:  # noqa: ASYNC110 - it signals nobody
            await asyncio.sleep(0.05)


def test_nothing_is_read_while_nobody_looks() -> None:
    async def main() -> None:
        async with watched() as (_, live), aiohttp.ClientSession() as session:
            feed = live.api.feed
            assert feed.is_idle
            async with session.get(f"{live.url}/api/live") as response:
                await response.content.readuntil(b"event: snapshot\n")
                assert not feed.is_idle
            await until_idle(live)

    asyncio.run(main())
