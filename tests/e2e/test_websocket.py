"""The websocket protocol through all stages: credits, resume, chunks, and who waits for whom."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from pipeline.checkpoint.card import ModelCard
from pipeline.messages import DeviceReady, SamplingParams
from pipeline.runtime.testing import fake_token
from tests.e2e.faults import Price, device
from tests.e2e.world import Server, serving

PROMPT = "abc"
FEW = DeviceReady(num_blocks=64, block_size=4, max_num_seqs=2, max_num_batched_tokens=64)
A_TOKEN_A_CHUNK = "[stages.stream.options]\nflush_tokens = 1\n"


def expected(max_tokens: int, seed: int = 1) -> str:
    sampling = SamplingParams(seed=seed)
    return "".join(chr(fake_token(sampling, len(PROMPT) + k)) for k in range(max_tokens))


def run(
    card: ModelCard,
    body: Callable[[Server, aiohttp.ClientSession], Awaitable[None]],
    toml: str = "",
    capacity: DeviceReady = FEW,
    step_ms: float = 1.0,
) -> None:
    async def main() -> None:
        async with serving(card, device(Price(step_ms), capacity), toml) as server:
            async with aiohttp.ClientSession() as session:
                await body(server, session)
            await server.rest()

    asyncio.run(main())


class Client:
    """One socket with its hello read."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, hello: dict[str, Any]) -> None:
        self.ws = ws
        self.session: str = hello["session"]

    async def generate(self, client_id: str = "a", max_tokens: int = 20, **fields: Any) -> None:
        await self.send(
            "generate", client_id, prompt=PROMPT, max_tokens=max_tokens, seed=1, ignore_eos=True, **fields
        )
        assert (await self.read())["type"] == "accepted"

    async def send(self, kind: str, client_id: str = "a", **fields: Any) -> None:
        await self.ws.send_json({"type": kind, "id": client_id, **fields})

    async def read(self, timeout_s: float = 10) -> Any:
        return await self.ws.receive_json(timeout=timeout_s)

    async def tokens(self, count: int) -> list[Any]:
        """Frames until so many tokens have come."""
        frames: list[Any] = []
        while sum(frame["tokens"] for frame in frames) < count:
            frames.append(await self.read())
        return frames

    async def to_the_end(self) -> list[Any]:
        frames = [await self.read()]
        while frames[-1]["type"] not in ("done", "error"):
            frames.append(await self.read())
        return frames

    def lose(self) -> None:
        response: Any = self.ws._response
        response.connection.transport.abort()


@asynccontextmanager
async def client(server: Server, session: aiohttp.ClientSession) -> AsyncIterator[Client]:
    async with session.ws_connect(f"{server.url}/v1/stream", protocols=("stageline.v1",)) as ws:
        yield Client(ws, await ws.receive_json(timeout=5))


def said(frames: list[Any]) -> str:
    return "".join(frame.get("text", "") for frame in frames)


async def until(condition: Callable[[], bool], within_s: float = 5) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - the scheduler signals nobody
            await asyncio.sleep(0.002)


def test_credits_pause_the_sequence_and_lose_nothing(fake_card: ModelCard) -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        async with client(server, session) as c:
            await c.generate(max_tokens=40, credits=5)
            frames = await c.tokens(5)
            (sequence,) = server.scheduler._live.values()
            await until(lambda: sequence.is_paused and not server.scheduler.num_in_flight)
            num_steps, num_blocks = server.scheduler.num_steps, len(sequence.blocks)
            await asyncio.sleep(0.1)
            assert server.scheduler.num_steps == num_steps and len(sequence.blocks) == num_blocks > 0
            for _ in range(7):
                await c.send("ping")
                assert (await c.read())["type"] == "pong", "not a token more than was granted"
                await c.send("grant", tokens=5)
                frames += await c.tokens(5)
            frames += await c.to_the_end()
            assert said(frames) == expected(40)
            assert frames[-1]["usage"]["completion_tokens"] == 40

    run(fake_card, body)


def test_paused_sequences_give_way_to_those_who_wait(fake_card: ModelCard) -> None:
    """Two clients that grant nothing hold both slots; a third does not wait for them."""

    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        async with client(server, session) as c, client(server, session) as other:
            for name in "ab":
                await c.generate(name, max_tokens=12, credits=3)
                assert said(await c.tokens(3)) == expected(3)
            await until(lambda: all(each.is_paused for each in server.scheduler._live.values()))
            await other.generate(max_tokens=12)
            assert said(await other.to_the_end()) == expected(12)
            assert server.scheduler.num_preemptions >= 1
            for name in "ab":
                await c.send("grant", name, tokens=20)
            texts = {"a": "", "b": ""}
            ended = 0
            while ended < 2:
                frame = await c.read()
                texts[frame["id"]] += frame.get("text", "")
                ended += frame["type"] == "done"
            assert texts == {"a": expected(12)[3:], "b": expected(12)[3:]}

    run(fake_card, body)


def test_who_grants_nothing_is_ended_in_time(fake_card: ModelCard) -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        async with client(server, session) as c:
            await c.generate(credits=2)
            frames = await c.to_the_end()
            assert frames[-1]["error"]["code"] == "no_credit" and said(frames) == expected(2)

    run(fake_card, body, "[stages.stream.options]\nmax_paused_s = 0.3\n")


def test_a_request_outlives_its_sockets(fake_card: ModelCard) -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        frames: list[Any] = []
        before = ""
        for attempt in range(6):
            async with client(server, session) as c:
                if attempt == 0:
                    await c.generate(max_tokens=120, resumable=True)
                else:
                    await c.send("resume", session=before, index=frames[-1]["index"])
                    assert await c.read() == {"type": "resumed", "id": "a", "index": frames[-1]["index"]}
                before = c.session
                if attempt < 5:
                    frames += await c.tokens(15)
                    c.lose()
                else:
                    frames += await c.to_the_end()
                    await c.send("ack", index=frames[-1]["index"])
                    await c.send("ping")
                    assert (await c.read())["type"] == "pong"
        assert said(frames) == expected(120)
        assert [frame["index"] for frame in frames] == list(range(1, len(frames) + 1))

    run(fake_card, body, A_TOKEN_A_CHUNK, step_ms=3.0)


def test_a_request_whose_client_stays_away_is_freed(fake_card: ModelCard) -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        async with client(server, session) as c:
            await c.generate(max_tokens=200, resumable=True)
            await c.tokens(1)
            c.lose()
        await asyncio.sleep(0.1)
        assert server.num_live == 1
        await server.rest(2)

    run(fake_card, body, "[stages.ingress.options]\nresume_s = 0.4\n", step_ms=5.0)


def test_what_is_not_acknowledged_is_bounded(fake_card: ModelCard) -> None:
    """The client is away; its sequence is paused when so much text waits for it, and nothing is lost."""
    toml = A_TOKEN_A_CHUNK + "flush_ms = 0\nclient_buffer_bytes = 4096\nslow_client_s = 0.2\n"
    roomy = DeviceReady(num_blocks=200, block_size=4, max_num_seqs=2, max_num_batched_tokens=64)

    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        async with client(server, session) as first:
            await first.generate(max_tokens=400, resumable=True)
            await first.tokens(1)
            first.lose()
        (sequence,) = server.scheduler._live.values()
        await until(lambda: sequence.is_paused)
        await asyncio.sleep(0.5)
        assert server.num_live == 1, "who is away is not slow"
        async with client(server, session) as c:
            await c.send("resume", session=first.session, index=0)
            frames = [await c.read()]
            while frames[-1]["type"] not in ("done", "error"):
                frames.append(await c.read())
                await c.send("ack", index=frames[-1]["index"])
        assert said(frames) == expected(400), frames[-1]

    run(fake_card, body, toml, roomy)


def test_a_request_chooses_larger_pieces(fake_card: ModelCard) -> None:
    fields = {"prompt": PROMPT, "max_tokens": 41, "seed": 1, "ignore_eos": True, "stream": True}

    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        async with client(server, session) as c:
            await c.generate(max_tokens=41, flush_tokens=20, flush_ms=1000)
            frames = (await c.to_the_end())[:-1]
            assert [frame["tokens"] for frame in frames] == [1, 20, 20] and said(frames) == expected(41)
        steered = fields | {"flush_tokens": 20, "flush_ms": 1000}
        async with session.post(f"{server.url}/v1/completions", json=steered) as answer:
            assert (await answer.text()).count('"text":"') == 4, "and one with the finish reason"

    run(fake_card, body, A_TOKEN_A_CHUNK)


def test_a_socket_is_kept_alive_while_a_prompt_is_computed(fake_card: ModelCard) -> None:
    """By pings, which proxies and clients see, long before there is any text."""

    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(f"{server.url}/v1/stream", autoping=False) as ws:
            generate = {
                "type": "generate",
                "id": "a",
                "prompt": "x" * 100,
                "max_tokens": 2,
                "ignore_eos": True,
            }
            await ws.send_json(generate)
            assert (await ws.receive_json())["type"] == "accepted"
            message = await ws.receive(timeout=5)
            assert message.type is aiohttp.WSMsgType.PING and server.num_live
            await ws.pong(message.data)
            begin = time.monotonic()
            while (message := await ws.receive(timeout=5)).type is aiohttp.WSMsgType.PING:
                await ws.pong(message.data)
            assert message.json()["type"] == "delta" and time.monotonic() - begin < 5

    capacity = DeviceReady(num_blocks=64, block_size=4, max_num_seqs=2, max_num_batched_tokens=10)
    run(fake_card, body, "[stages.ingress.options]\nping_interval_s = 0.2\n", capacity, step_ms=80.0)
