"""R12: SIGTERM under load. No new request gets in, each that was in ends properly, and the process with 0."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.test_process import Process

pytestmark = [pytest.mark.model, pytest.mark.nightly]

NUM_CLIENTS = 12
TOML = '[device]\ndevice = "cpu"\nnum_blocks = 512\n[server]\ndrain_timeout_s = {drain_s}\n'
BODY: dict[str, Any] = {"prompt": "Count to a thousand: one, two,", "ignore_eos": True, "temperature": 0}


async def by_sse(session: aiohttp.ClientSession, url: str, max_tokens: int, begun: asyncio.Event) -> str:
    """How it ended: `length`, or the code of an error event. Each stream ends in [DONE]."""
    body = BODY | {"max_tokens": max_tokens, "stream": True}
    async with session.post(f"{url}/v1/completions", json=body) as response:
        await response.content.readline()
        begun.set()
        text = (await response.content.read()).decode()
    assert text.rstrip().endswith("[DONE]")
    return "length" if '"finish_reason":"length"' in text else text.partition('"code":"')[2].partition('"')[0]


async def by_websocket(
    session: aiohttp.ClientSession, url: str, max_tokens: int, begun: asyncio.Event
) -> tuple[str, int | None]:
    """The same, and the close code after it."""
    async with session.ws_connect(f"{url}/v1/stream", protocols=("stageline.v1",)) as ws:
        await ws.send_json({"type": "generate", "id": "a", "max_tokens": max_tokens, **BODY})
        ending = ""
        async for message in ws:
            frame = message.json()
            if frame["type"] == "delta":
                begun.set()
            elif frame["type"] == "done":
                ending = frame["finish_reason"]
            elif frame["type"] == "error":
                ending = frame["error"]["code"]
        return ending, ws.close_code


async def check_closed_to_new(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(f"{url}/ready") as ready:
        assert ready.status == 503
    async with session.post(f"{url}/v1/completions", json=BODY | {"max_tokens": 1}) as refused:
        assert refused.status == 503 and (await refused.json())["error"]["code"] == "draining"
    async with session.ws_connect(f"{url}/v1/stream", protocols=("stageline.v1",)) as ws:
        assert (await ws.receive()).data == 1013


async def load_and_end(server: Process, url: str, max_tokens: int) -> tuple[list[str], list[Any]]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        events = [asyncio.Event() for _ in range(2 * NUM_CLIENTS)]
        sse = [asyncio.create_task(by_sse(session, url, max_tokens, each)) for each in events[:NUM_CLIENTS]]
        sockets = [
            asyncio.create_task(by_websocket(session, url, max_tokens, each)) for each in events[NUM_CLIENTS:]
        ]
        await asyncio.wait_for(asyncio.gather(*(each.wait() for each in events)), 60)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        await check_closed_to_new(session, url)
        return await asyncio.gather(*sse), await asyncio.gather(*sockets)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("max_tokens", "drain_s", "ending"), [(150, 60, "length"), (1500, 2, "shutting_down")]
)
def test_sigterm_under_load(tmp_path: Path, max_tokens: int, drain_s: int, ending: str) -> None:
    server = Process(tmp_path, toml=TOML.format(drain_s=drain_s))
    try:
        streams, sockets = asyncio.run(load_and_end(server, server.wait_ready(), max_tokens))
        code = server.wait(30)
    finally:
        server.process.kill()
        server.process.wait()
    assert streams == [ending] * NUM_CLIENTS
    assert sockets == [(ending, 1001)] * NUM_CLIENTS
    assert "Traceback" not in server.said
    assert code == 0, server.said
