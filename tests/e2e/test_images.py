"""Images over real sockets, with a random vision model: what is seen counts, and text never waits for it."""

import asyncio
import base64
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import openai
import pytest

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.checkpoint.folder import describe_folder
from pipeline.images import ImageReader
from pipeline.runtime.testing import FakeRunner
from tests import tiny_vision
from tests.e2e.world import Server, serving

DEVICE = """
[device]
dtype = "float32"
device = "cpu"
backend = "torch"
block_size = 8
max_num_seqs = 8
num_threads = 1
"""
TOML = DEVICE + "num_blocks = 64\n[stages.images]\n"


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> ModelCard:
    return describe_folder(tiny_vision.write_folder(tmp_path_factory.mktemp("llava")), "llava", "llava")


def data_url(file: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


def asked(*urls: str, text: str = "hello") -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


RED, BLUE = (data_url(tiny_vision.picture(seed)) for seed in (1, 2))
Talk = Callable[[openai.AsyncOpenAI, Server], Coroutine[Any, Any, None]]


def serve(card: ModelCard, talk: Talk, toml: str = TOML, **options: Any) -> None:
    async def main() -> None:
        async with serving(card, toml=toml, **options) as server:
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
                await asyncio.wait_for(talk(client, server), 60)
            await server.rest()

    asyncio.run(main())


async def answer(client: openai.AsyncOpenAI, messages: Any, **fields: Any) -> Any:
    fields = {"max_tokens": 12, "temperature": 0, "model": "llava"} | fields
    return await client.chat.completions.create(messages=messages, **fields)


async def said(client: openai.AsyncOpenAI, messages: Any, **fields: Any) -> str:
    text: str = (await answer(client, messages, **fields)).choices[0].message.content
    return text


def test_answers_differ_by_image_and_are_the_same_for_the_same(card: ModelCard) -> None:
    async def talk(client: openai.AsyncOpenAI, server: Server) -> None:
        red, blue, again = [await said(client, asked(url)) for url in (RED, BLUE, RED)]
        assert red == again != blue
        assert await said(client, asked(RED, BLUE)) != await said(client, asked(BLUE, RED))
        assert await said(client, asked()) != red
        alike = await answer(client, asked(RED), n=2)
        assert [choice.message.content for choice in alike.choices] == [red, red]
        stream = await answer(client, asked(RED), stream=True)
        assert (
            "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]) == red
        )
        image = {"type": "input_image", "image_url": RED}
        response = await client.responses.create(
            model="llava",
            input=[{"role": "user", "content": [image, {"type": "input_text", "text": "hello"}]}],  # type: ignore[list-item]
            max_output_tokens=12,
            temperature=0,
        )
        assert response.output_text == red
        assert await over_websocket(server, asked(RED)) == red

    serve(card, talk)


async def over_websocket(server: Server, messages: Any) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{server.url}/v1/stream", protocols=("stageline.v1",)) as ws,
    ):
        await ws.receive_json()
        await ws.send_json(
            {"type": "generate", "id": "a", "messages": messages, "max_tokens": 12, "temperature": 0}
        )
        text = ""
        while (frame := await ws.receive_json(timeout=10))["type"] != "done":
            assert frame["type"] != "error", frame
            text += frame.get("text", "")
        return text + frame.get("text", "")


def test_only_prompts_with_the_same_images_share_kv(card: ModelCard) -> None:
    async def talk(client: openai.AsyncOpenAI, server: Server) -> None:
        async def cached(url: str) -> tuple[int, str]:
            found = await answer(client, asked(url, text="hello hello hello"), max_tokens=6)
            return found.usage.prompt_tokens_details.cached_tokens, found.choices[0].message.content

        first, other, again = await cached(RED), await cached(BLUE), await cached(RED)
        assert (first[0], other[0]) == (0, 0) and again[0] >= 8
        assert first[1] == again[1] != other[1]

    serve(card, talk)


def test_chunks_preemptions_and_company_change_no_answer(card: ModelCard) -> None:
    questions = [asked(*urls, text=text) for urls in ((RED,), (BLUE,)) for text in ("hello", "12")]
    alone: list[str] = []

    async def one_by_one(client: openai.AsyncOpenAI, server: Server) -> None:
        alone.extend([await said(client, each, max_tokens=20) for each in questions])

    async def together(client: openai.AsyncOpenAI, server: Server) -> None:
        texts = await asyncio.gather(*(said(client, each, max_tokens=20) for each in questions))
        assert list(texts) == alone
        assert server.scheduler.num_preemptions > 0

    serve(card, one_by_one)
    tight = DEVICE + "num_blocks = 14\nmax_num_batched_tokens = 10\n[stages.images]\nworkers = 2\n"
    serve(card, together, tight)
    serve(card, together, tight + '[stages.schedule.options]\nseparation = "split"\n')


def test_text_is_answered_while_images_wait(card: ModelCard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool is busy and its inbox full: more images are refused at once, text is as quick as ever."""
    may_go = threading.Event()
    read = ImageReader.read
    monkeypatch.setattr(ImageReader, "read", lambda self, text: (may_go.wait(20), read(self, text))[1])

    async def talk(client: openai.AsyncOpenAI, server: Server) -> None:
        usual_s = await took_s(client)
        (stage,), inbox = server.pipeline.stages["images"], server.pipeline.inboxes["images"]
        waiting = [asyncio.create_task(said(client, asked(RED)))]
        await until(lambda: stage.service.begun_ns > 0)
        waiting += [asyncio.create_task(said(client, asked(RED))) for _ in range(2)]
        await until(lambda: inbox.room() == 0)
        with pytest.raises(openai.RateLimitError, match="queue is full"):
            await said(client, asked(BLUE))
        assert await took_s(client) < 20 * usual_s + 1
        assert not any(task.done() for task in waiting)
        may_go.set()
        assert len(set(await asyncio.gather(*waiting))) == 1

    async def until(is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not is_so():  # noqa: ASYNC110 - the inbox signals its stage only
                await asyncio.sleep(0.005)

    async def took_s(client: openai.AsyncOpenAI) -> float:
        began_s = time.perf_counter()
        await asyncio.gather(*(said(client, asked()) for _ in range(4)))
        return time.perf_counter() - began_s

    serve(card, talk, DEVICE + "num_blocks = 64\n[stages.images]\ninbox = 2\n")


def test_its_time_is_part_of_the_wait_for_tokenize_and_all_parts_add_up(
    card: ModelCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = ImageReader.read
    monkeypatch.setattr(ImageReader, "read", lambda self, text: time.sleep(0.2) or read(self, text))

    async def talk(client: openai.AsyncOpenAI, server: Server) -> None:
        found = await asyncio.gather(
            *(answer(client, asked(url), extra_body={"timings": True}) for url in (RED, BLUE))
        )
        timings = [each.model_extra["timings"] for each in found]
        for each in timings:
            assert sum(each["segments_ms"].values()) == pytest.approx(each["e2e_ms"], abs=1e-6)
            assert each["segments_ms"]["tokenize.wait"] >= 200
        assert max(each["segments_ms"]["tokenize.wait"] for each in timings) >= 390, "for the other's image"
        (service,) = (stage.service for stage in server.pipeline.stages["images"])
        assert service.num_messages == 2 and service.busy_ns >= 4e8

    serve(card, talk)


def test_what_is_wrong_with_an_image_is_said(card: ModelCard) -> None:
    cases = [
        ("http://127.0.0.1:9/a.png", "image_url_not_allowed", "fetches nothing"),
        ("file:///etc/passwd", "image_url_not_allowed", "fetches nothing"),
        ("data:image/png;base64,aGVsbG8=", "invalid_image", "must be PNG, JPEG or WebP"),
        (data_url(tiny_vision.picture()[:100]), "invalid_image", "damaged"),
        (
            data_url(tiny_vision.picture(size=(5000, 3))),
            "invalid_image",
            "5000 x 3 pixels; 10000 are the most",
        ),
    ]

    async def talk(client: openai.AsyncOpenAI, server: Server) -> None:
        for url, code, what in cases:
            with pytest.raises(openai.BadRequestError, match=what) as raised:
                await said(client, asked(RED, url))
            assert (raised.value.code, raised.value.param) == (code, "messages[0].content[1].image_url.url")
        with pytest.raises(openai.BadRequestError, match="may hold 2 images") as raised:
            await said(client, asked(RED, RED, RED))
        assert raised.value.code == "too_many_images"
        with pytest.raises(openai.RateLimitError, match="too many images"):
            await answer(client, asked(RED, RED), n=2)
        assert await said(client, asked(RED))

    options = "[stages.images.options]\nmax_pixels = 10_000\n"
    limits = "[stages.ingress.options]\nmax_images = 2\nmax_live_images = 3\n"
    serve(card, talk, TOML + options + limits)


def test_a_server_without_the_stage_says_so(card: ModelCard) -> None:
    async def talk(client: openai.AsyncOpenAI, server: Server) -> None:
        with pytest.raises(openai.BadRequestError, match=r"no \[stages\.images\]") as raised:
            await said(client, asked(RED))
        assert raised.value.code == "images_not_enabled"
        assert await said(client, asked())

    serve(card, talk, DEVICE + "num_blocks = 64\n")


@pytest.mark.parametrize("toml", ["", "[stages.images]\n"])
def test_a_model_without_an_encoder_refuses_images(toml: str) -> None:
    async def talk(client: openai.AsyncOpenAI, server: Server) -> None:
        with pytest.raises(openai.BadRequestError, match="only text is read here") as raised:
            await said(client, asked(RED), model="fake")
        assert raised.value.code == "images_not_supported"
        assert await said(client, asked(), model="fake")

    serve(byte_card(), talk, toml, make_runner=FakeRunner)


@pytest.mark.nightly
def test_images_reach_a_device_that_is_a_process(card: ModelCard) -> None:
    texts: list[list[str]] = []

    async def talk(client: openai.AsyncOpenAI, server: Server) -> None:
        texts.append([await said(client, asked(url)) for url in (RED, BLUE)])

    for placement in ("thread", "process"):
        serve(card, talk, TOML.replace("[device]", f'[device]\nplacement = "{placement}"'))
    assert texts[0] == texts[1] and texts[0][0] != texts[0][1]
