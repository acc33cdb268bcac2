"""Malformed, ambiguous and smuggled HTTP: a 4xx or a close within a second, and nothing lives of it."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import pytest
import uvloop

from pipeline.checkpoint.card import ModelCard
from pipeline.runtime.testing import FakeRunner
from tests.e2e.raw_http import MESSAGE, Door, canary_ms, certificate, post
from tests.e2e.saying import ROOM
from tests.e2e.world import serving

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(MESSAGE)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(MESSAGE), MESSAGE)
SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"

REFUSED = {
    "both lengths: CL.TE": HEAD + b"Content-Length: 4\r\n" + CHUNKED + b"\r\n" + CHUNKS + SMUGGLED,
    "both lengths: TE.CL": HEAD + CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!" + SMUGGLED,
    "two lengths in one": HEAD + b"Content-Length: 5, 6\r\n\r\nhello!" + SMUGGLED,
    "equal lengths in one": HEAD + b"Content-Length: 5, 5\r\n\r\nhello",
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\n",
    "a signed length": HEAD + b"Content-Length: +5\r\n\r\nhello",
    "a hexadecimal length": HEAD + b"Content-Length: 0x5\r\n\r\nhello",
    "an underscored length": HEAD + b"Content-Length: 1_0\r\n\r\nhellohello",
    "a length in other digits": HEAD + "Content-Length: \u0665\r\n\r\nhello".encode(),
    "an empty length": HEAD + b"Content-Length: \r\n\r\nhello",
    "a huge length": HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "a length over the limit": HEAD + b"Content-Length: 3000000\r\n\r\n",
    "TE twice": HEAD + CHUNKED + CHUNKED + b"\r\n" + CHUNKS + SMUGGLED,
    "TE: chunked, identity": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKS + SMUGGLED,
    "TE: xchunked": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS + SMUGGLED,
    "TE with a vertical tab": HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKS + SMUGGLED,
    "TE after a space": HEAD + b" Transfer-Encoding: chunked\r\n\r\n" + CHUNKS + SMUGGLED,
    "TE before a space": HEAD + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKS + SMUGGLED,
    "TE hidden behind a bare CR": HEAD + b"X: y\rTransfer-Encoding: chunked\r\n" + LENGTH + b"\r\n" + MESSAGE,
    "TE hidden behind a bare LF": HEAD + b"X: y\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
    "TE in HTTP/1.0": b"POST /v1/completions HTTP/1.0\r\n" + CHUNKED + LENGTH + b"\r\n" + CHUNKS,
    "a chunk that has no size": HEAD + CHUNKED + b"\r\n\r\nhello\r\n0\r\n\r\n",
    "a chunk's size that is none": HEAD + CHUNKED + b"\r\nzz\r\nhello\r\n0\r\n\r\n",
    "a chunk's signed size": HEAD + CHUNKED + b"\r\n+5\r\nhello\r\n0\r\n\r\n",
    "a chunk's size after 0x": HEAD + CHUNKED + b"\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "a chunk's underscored size": HEAD + CHUNKED + b"\r\n1_0\r\nhellohellohello1\r\n0\r\n\r\n",
    "a chunk that is longer than its size": HEAD + CHUNKED + b"\r\n2\r\nhello\r\n0\r\n\r\n",
    "a chunk's huge size": HEAD + CHUNKED + b"\r\n" + b"f" * 40 + b"\r\nhello\r\n0\r\n\r\n",
    "a chunk's endless extension": HEAD + CHUNKED + b"\r\n1;" + b"a" * 100_000 + b"\r\nx\r\n0\r\n\r\n",
    "a chunk's extension with LF": HEAD + CHUNKED + b"\r\n2;\nxx\r\n4c\r\n0\r\n\r\n" + SMUGGLED,
    "chunks over the limit": HEAD + CHUNKED + b"\r\n" + b"10000\r\n%b\r\n" % (b"x" * 65_536) * 40,
    "endless trailers": HEAD + CHUNKED + b"\r\n0\r\n" + b"a: b\r\n" * 100_000 + b"\r\n",
    "a folded header": HEAD + b"X: a\r\n b\r\n" + LENGTH + b"\r\n" + MESSAGE,
    "a folded first header": GET.replace(b"Host: x\r\n", b" Host: x\r\n") + b"\r\n",
    "NUL in the target": b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    "NUL in a name": GET + b"X\x00: y\r\n\r\n",
    "NUL in a value": GET + b"X: a\x00b\r\n\r\n",
    "a bare CR in a value": GET + b"X: a\rb\r\n\r\n",
    "a name with a space": GET + b"Bad Header: y\r\n\r\n",
    "a name that is empty": GET + b": y\r\n\r\n",
    "a header without a colon": GET + b"nothing\r\n\r\n",
    "a name beyond ASCII": GET + "Hé: y\r\n\r\n".encode(),
    "a huge header": GET + b"X: " + b"a" * 10_000 + b"\r\n\r\n",
    "a huge name": GET + b"a" * 10_000 + b": x\r\n\r\n",
    "a header without an end": GET + b"X: " + b"a" * 1_000_000,
    "too many headers": GET + b"A: b\r\n" * 200 + b"\r\n",
    "a huge target": b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "a request line without an end": b"GET /" + b"a" * 1_000_000,
    "no version": b"GET /\r\n\r\n",
    "another version": b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xab" * 500,
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "noise": bytes(range(256)) * 8,
    "NULs": b"\x00" * 4096,
    "a method that is none": b"G@T / HTTP/1.1\r\nHost: x\r\n\r\n",
    "CONNECT": b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n",
    "TRACE": b"TRACE /v1/completions HTTP/1.1\r\nHost: x\r\nCookie: a\r\n\r\n",
    "no websocket": GET.replace(b"models", b"stream") + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "half a body": HEAD + b"Content-Length: 100\r\n\r\nhello",
    "h2c": GET.replace(b"models", b"nothing") + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
}  # fmt: skip

ANSWERED = {
    "an absolute target names nothing else": (
        b"GET http://example.org/v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        [200],
    ),
    "a path is not made simpler before it is looked up": (
        b"GET /v1/../v1/nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        [404],
    ),
    "two requests in one packet get two answers, in their order": (
        GET + b"\r\n" + GET.replace(b"models", b"nothing") + b"Connection: close\r\n\r\n",
        [200, 404],
    ),
    "a body is not the next request": (
        post(SMUGGLED) + GET + b"Connection: close\r\n\r\n",
        [400, 200],
    ),
    "after a refused body comes no request": (HEAD + b"Content-Length: 3000000\r\n\r\n" + SMUGGLED, [413]),
}


def statuses(answer: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)]


@pytest.fixture(scope="module", params=["http", pytest.param("https", marks=pytest.mark.nightly)])
def tls(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The options that say whether there is TLS."""
    soon = "[stages.ingress.options]\nkeepalive_s = 0.5\nbody_timeout_s = 0.5\n"
    if request.param == "http":
        return soon
    cert, key = certificate(tmp_path_factory.mktemp("tls"))
    return f'{soon}tls_cert = "{cert}"\ntls_key = "{key}"\n'


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_it_is_refused_or_closed_within_a_second(
    fake_card: ModelCard, tls: str, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def main() -> None:
        async with serving(fake_card, lambda: FakeRunner(ROOM), tls) as server:
            door = Door.of(server, is_tls="tls_cert" in tls)
            for name, data in REFUSED.items():
                answer = await door.say(data, 1.0)
                got = statuses(answer)
                assert all(400 <= status < 500 for status in got) and len(got) <= 1, (name, answer)
                for inside in (b"Traceback", b".py", b"aiohttp.", b"Error("):
                    assert inside not in answer.partition(b"\r\n\r\n")[2], (name, answer)
                assert server.num_live == 0, name
            async with aiohttp.ClientSession() as session:
                assert await canary_ms(session, door, 3)
            await server.rest()

    run(main())


@pytest.mark.parametrize("case", ANSWERED)
def test_what_is_odd_but_clear_is_answered(fake_card: ModelCard, case: str) -> None:
    async def main() -> None:
        async with serving(fake_card, lambda: FakeRunner(ROOM)) as server:
            data, expected = ANSWERED[case]
            assert statuses(await Door.of(server, is_tls=False).say(data, 2.0, ends=False)) == expected

    asyncio.run(main())


def test_pipelined_requests_are_bounded(fake_card: ModelCard) -> None:
    """Ten thousand at once: what waits for its answer does not grow with them."""

    async def main() -> None:
        async with serving(fake_card, lambda: FakeRunner(ROOM)) as server:
            door = Door.of(server, is_tls=False)
            ingress: Any = server.pipeline.stages["ingress"][0]
            reader, writer = await door.connect()
            writer.write((GET + b"\r\n") * 10_000)
            seen = b""
            async with asyncio.timeout(20):
                while seen.count(b"HTTP/1.1 200") < 50:
                    seen += await reader.read(65536)
                    (connection,) = ingress._runner.server.connections
                    assert len(connection._messages) <= 64
            writer.transport.abort()
            await server.rest()

    asyncio.run(main())
