"""What clients send and get is in no log, no error, no metric, no trace: words that mark it are looked for.

Every way to fail is taken, on every door, at log level debug and with the access log on.
"""

import asyncio
import io
import json
import logging
import socket
import struct
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import pytest
import structlog

from pipeline import admin, logs
from pipeline import config as configuration
from pipeline.admin import AdminServer
from pipeline.checkpoint.card import ModelCard
from pipeline.core.prompts import PromptEncoder
from pipeline.errors import StageCrashed
from pipeline.messages import StepPlan
from pipeline.stages.ingress.intake import Intake
from tests.e2e.canary import (
    ASK,
    AUTH,
    CHAT,
    FIELDS,
    INPUTS,
    KEY,
    MESSAGES,
    POOR,
    PROMPTS,
    SECRETS,
    TEXT,
    TOOLS,
    Says,
    Seen,
    toml,
)
from tests.e2e.saying import SayingRunner
from tests.e2e.world import Server, serving


@pytest.fixture(params=["text", pytest.param("json", marks=pytest.mark.nightly)])
def seen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """Everything that would come to a terminal, from structlog, logging, and asyncio's own complaints."""
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    handler = logging.StreamHandler(written)
    before = structlog.get_config()
    logging.getLogger().addHandler(handler)
    logs.configure("debug", request.param)
    try:
        yield Seen(written)
    finally:
        structlog.configure(**before)
        logging.getLogger().removeHandler(handler)


@asynccontextmanager
async def world(
    card: ModelCard, folder: Path, seen: Seen, runner: SayingRunner
) -> AsyncIterator[tuple[Server, AdminServer, aiohttp.ClientSession]]:
    pytest.importorskip("re2", reason="google-re2 is not installed (the extra `filter`)")
    text = toml(folder)
    config = configuration.loads(text + "\n[admin]\nport = 0", "test.toml")
    async with (
        serving(card, lambda: runner, text) as server,
        admin.beside(server.pipeline, config, card) as page,
        aiohttp.ClientSession() as session,
    ):
        assert page is not None
        yield server, page, session
        await look(server, page, session, seen)


async def look(server: Server, page: AdminServer, session: aiohttp.ClientSession, seen: Seen) -> None:
    """At every page that says something of what happened."""
    for url in (
        *(server.url + path for path in ("/metrics", "/debug/trace", "/v1/models", "/openapi.json")),
        *(page.url + path for path in ("/metrics", "/debug/trace", "/api/evidence", "/api/diagnosis")),
    ):
        async with session.get(url, headers=AUTH) as response:
            seen.pages[url.partition("//")[2]] = await response.text()
            assert response.status == 200, url
    async with session.get(page.url + "/api/live") as response:
        parts = [await response.content.readuntil(b"\n\n") for _ in range(3)]
        seen.pages["/api/live"] = b"".join(parts).decode()


async def post(
    session: aiohttp.ClientSession,
    seen: Seen,
    url: str,
    body: Any,
    *,
    status: int | None = None,
    **headers: str,
) -> int:
    """The status of the answer, which is kept if it is an error."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with session.post(url, data=data, headers=AUTH | headers) as response:
        text = await response.text()
        if response.status != 200:
            seen.errors.append(text + repr(response.headers))
        elif '{"error":' in text:
            seen.errors.append(text[text.index('{"error":') :])
        assert status in (None, response.status), (status, text)
        return response.status


async def wrong_fields(session: aiohttp.ClientSession, seen: Seen, url: str) -> None:
    """Each field is wrong once, and beside it what must not be told."""
    refused = 0
    for path, ask in (("/v1/completions", ASK), ("/v1/chat/completions", CHAT)):
        for field in FIELDS:
            for value in ({"a": 1}, -3000.5):
                refused += await post(session, seen, url + path, ask | {field: value}) == 400
    assert refused > 150
    for prompt in PROMPTS:
        for path in ("/v1/completions", "/tokenize"):
            await post(session, seen, url + path, {"prompt": prompt, "max_tokens": 1, "seed": 1, "echo": 3})
            await post(session, seen, url + path, {"prompt": prompt, "max_tokens": 1, "seed": 1} | {})
    for messages in MESSAGES:
        for path in ("/v1/chat/completions", "/tokenize"):
            assert await post(session, seen, url + path, {"messages": messages}) in (400, 413)
    for more in TOOLS:
        await post(session, seen, url + "/v1/chat/completions", CHAT | more)
        await post(session, seen, url + "/v1/completions", ASK | more)
    for given in INPUTS:
        await post(session, seen, url + "/v1/responses", {"input": given, "instructions": TEXT})
    for tokens in ([SECRETS["prompt"]], SECRETS["prompt"] + "x" * 50, [1, SECRETS["prompt"]]):
        await post(session, seen, url + "/detokenize", {"tokens": tokens}, status=400)


async def wrong_requests(session: aiohttp.ClientSession, seen: Seen, url: str) -> None:
    """Bodies, keys, paths and headers that are no good."""
    to = url + "/v1/completions"
    whole = json.dumps(ASK).encode()
    for body in (
        whole[:-1],
        b"[" + whole,
        whole + whole,
        b'"%b"' % TEXT.encode(),
        whole.replace(b"zq", b"\xff", 1),
    ):
        await post(session, seen, to, body, status=400)
    await post(session, seen, to, {"prompt": TEXT * 10_000}, status=413)
    await post(session, seen, to, {"prompt": TEXT * 500}, status=413)
    await post(session, seen, to, ASK, status=401, Authorization=f"Bearer {SECRETS['wrongkey']}")
    await post(session, seen, to, ASK, status=401, Authorization=f"{SECRETS['wrongkey']} x")
    encoded = {"Content-Encoding": SECRETS["header"]}
    await post(session, seen, to, ASK, status=415, **encoded)
    poor = {"Authorization": f"Bearer {POOR}"}
    await post(session, seen, to, ASK, status=200, **poor)
    await post(session, seen, to, ASK, status=429, **poor)
    told = {
        "User-Agent": SECRETS["header"],
        "Origin": f"https://{SECRETS['header']}.example",
        "traceparent": TEXT,
    }
    await post(session, seen, to, ASK, status=200, **told)
    for method in ("GET", "POST", "DELETE", "OPTIONS", "PATCH"):
        for path in ("/", "/v1/models/", "/v1/requests/", "/v1/requests/cmpl-"):
            address = f"{url}{path}{SECRETS['path']}?api_key={SECRETS['wrongkey']}"
            async with session.request(method, address, headers=AUTH) as response:
                seen.errors.append(await response.text())
                assert response.status in (404, 405)


async def wrong_frames(session: aiohttp.ClientSession, seen: Seen, url: str) -> None:
    refused = {"Origin": f"https://{SECRETS['header']}.example"} | AUTH
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await session.ws_connect(url + "/v1/stream", headers=refused)
    async with session.ws_connect(url + "/v1/stream", headers=AUTH) as ws:
        bad: list[Any] = [
            f'{{"{SECRETS["frame"]}": 1',
            json.dumps([SECRETS["frame"]]),
            {"type": [SECRETS["frame"]], "id": "a"},
            {"type": "generate", "id": {SECRETS["frame"]: 1}},
            *({"type": "generate", "id": "a", **ASK, field: {"a": 1}} for field in FIELDS),
            *({"type": "generate", "id": "a", "prompt": prompt, "echo": 3} for prompt in PROMPTS),
            *({"type": "generate", "id": "a", "messages": messages, "echo": 3} for messages in MESSAGES),
            *({"type": "generate", "id": "a", **CHAT, **more, "seed": 1.5} for more in TOOLS),
            {"type": "generate", "id": "a", **ASK, "traceparent": TEXT, "top_p": 9},
        ]
        for frame in bad:
            await ws.send_str(frame if isinstance(frame, str) else json.dumps(frame))
            answer = await ws.receive_json(timeout=10)
            assert answer["type"] == "error"
            seen.errors.append(json.dumps(answer))
        await ws.send_bytes(SECRETS["frame"].encode())
        seen.errors.append(json.dumps(await ws.receive_json(timeout=10)))
        await ws.send_str(SECRETS["frame"] * 10_000)
        closed = await ws.receive(timeout=10)
        assert ws.close_code == 1009
        seen.errors.append(repr(closed))


async def wrong_bytes(seen: Seen, port: int) -> None:
    """What is not HTTP, or only the beginning of it."""
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    garbage = SECRETS["garbage"]
    for data in (
        f"{garbage}\r\n\r\n",
        f"GET /{garbage} HTTP/7.7\r\n\r\n",
        f"GET /{garbage}\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
        f"GET / HTTP/1.1\r\n{garbage}\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: x\r\n{garbage} : x\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: x\r\nX: {garbage * 1000}\r\n\r\n",
        f"{head}Content-Length: {garbage}\r\n\r\n",
        f"{head}Transfer-Encoding: {garbage}\r\n\r\n",
        f"{head}Transfer-Encoding: chunked\r\n\r\n{garbage}\r\n",
        f"{head}Content-Length: 1000\r\n\r\n{TEXT}",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data.encode())
        async with asyncio.timeout(5):
            with suppress(ConnectionError):
                seen.errors.append((await reader.read()).decode())
        writer.close()


async def wrong_clients(session: aiohttp.ClientSession, seen: Seen, server: Server) -> None:
    """Those that leave, do not read, or are too many; and an answer that the filter ends."""
    url, port = server.url, int(server.url.rpartition(":")[2])
    await post(session, seen, url + "/v1/completions", ASK | {"seed": 2, "max_tokens": 200}, status=200)
    for stream in (True, False):
        body = json.dumps(ASK | {"seed": 3, "max_tokens": 4000, "stream": stream}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
        reset, slow = socket.socket(), socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        for each in (reset, slow):
            each.connect(("127.0.0.1", port))
            each.sendall(request)
        await asyncio.sleep(0.05)
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reset.close()
        await asyncio.sleep(1.0 if stream else 0.1)
        slow.close()
    await post(session, seen, url + "/v1/completions", ASK | {"prompt": [TEXT] * 9}, status=429)


async def faults(
    session: aiohttp.ClientSession, seen: Seen, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is ours fails, and quotes what it was working on."""

    def broken(self: Any, texts: Any, *_: Any, **__: Any) -> NoReturn:
        raise ValueError(f"cannot work on {texts!r}")

    def broken_at_last(self: Any, wanted: Any, *_: Any, **__: Any) -> NoReturn:
        try:
            {}[wanted[0].prompt or "chat"]
        except KeyError as error:
            raise RuntimeError(f"cannot take {wanted!r}") from error

    asks = (
        ("/v1/completions", ASK),
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", ASK | {"stream": True}),
    )
    with monkeypatch.context() as patch:
        patch.setattr(PromptEncoder, "encode", broken)
        for path, body in (*asks, ("/tokenize", {"prompt": TEXT})):
            await post(session, seen, url + path, body, status=500)
    with monkeypatch.context() as patch:
        patch.setattr(Intake, "submit_all", broken_at_last)
        for path, body in asks:
            await post(session, seen, url + path, body, status=500)


def test_of_all_that_goes_wrong_nothing_is_told(
    fake_card: ModelCard, tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with world(fake_card, tmp_path, seen, Says()) as (server, page, session):
            url = server.url
            await post(session, seen, url + "/v1/completions", ASK, status=200)
            await post(session, seen, url + "/v1/chat/completions", CHAT | {"stream": True}, status=200)
            await post(session, seen, url + "/v1/responses", {"input": TEXT, "instructions": TEXT})
            await wrong_fields(session, seen, url)
            await wrong_requests(session, seen, url)
            await wrong_frames(session, seen, url)
            for port in (url.rpartition(":")[2], page.port):
                await wrong_bytes(seen, int(port))
            await wrong_clients(session, seen, server)
            await faults(session, seen, url, monkeypatch)

    asyncio.run(main())
    assert len(seen.errors) > 300
    seen.check("access", "request_failed", "cannot tokenize", "slow_request", "http_fault")


def test_of_a_crash_nothing_is_told(fake_card: ModelCard, tmp_path: Path, seen: Seen) -> None:
    """The device is lost again and again, then for ever."""
    runner = Says()
    num_steps = 0

    def crash(plan: StepPlan) -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps > 3:
            raise RuntimeError("an illegal memory access was encountered")

    runner._before_step = crash

    async def main() -> None:
        async with (
            serving(fake_card, lambda: runner, toml(tmp_path)) as server,
            aiohttp.ClientSession() as session,
        ):
            url = server.url
            bodies = [ASK, ASK | {"stream": True}] * 2
            answers = (post(session, seen, f"{url}/v1/completions", body) for body in bodies)
            await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), 30)

    with pytest.raises(StageCrashed) as crashed:
        asyncio.run(main())
    structlog.get_logger().error(
        "the pipeline ended", reason=str(crashed.value), exc_info=crashed.value.__cause__
    )
    assert len(seen.errors) == 4
    seen.check("access", "the device is lost", "illegal memory access", "the pipeline ended")
