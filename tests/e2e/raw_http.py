"""Raw sockets for clients that are malicious, slow or broken, with TLS or without."""

import asyncio
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from tests.e2e.world import Server

MESSAGE = b'{"prompt":"Hi","max_tokens":2,"ignore_eos":true}'


def certificate(folder: Path) -> tuple[Path, Path]:
    """A chain and its key, signed by nobody else; skips where openssl is missing."""
    cert, key = folder / "chain.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    try:
        subprocess.run([*command, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed, which makes the test's certificate")
    return cert, key


def trusting_nobody() -> ssl.SSLContext:
    """A client's context that takes any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Door(NamedTuple):
    """Where to connect, and how."""

    port: int
    context: ssl.SSLContext | None

    @classmethod
    def of(cls, server: Server, *, is_tls: bool) -> "Door":
        return cls(int(server.url.rpartition(":")[2]), trusting_nobody() if is_tls else None)

    @property
    def url(self) -> str:
        return f"{'https' if self.context else 'http'}://127.0.0.1:{self.port}"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.context)

    async def say(self, data: bytes, within_s: float, *, ends: bool = True) -> bytes:
        """All that is answered until the server closes, or in this time; TimeoutError if that is nothing."""
        reader, writer = await self.connect()
        answer = b""
        with suppress(ConnectionError, ssl.SSLError):
            writer.write(data)
            if ends and writer.can_write_eof():
                writer.write_eof()
            try:
                async with asyncio.timeout(within_s):
                    while part := await reader.read(65536):
                        answer += part
            except TimeoutError:
                if not answer:
                    raise
        writer.transport.abort()
        return answer


def post(body: bytes = MESSAGE, more: bytes = b"") -> bytes:
    """A request as it should be."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n" % (len(body), more)
    return head + body


async def canary_ms(
    session: aiohttp.ClientSession, door: Door, count: int, pause_s: float = 0.0
) -> list[float]:
    """How long well-behaved requests take, one after the other, sorted."""
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        async with session.post(
            f"{door.url}/v1/completions", data=MESSAGE, ssl=door.context or True
        ) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()
        times.append((time.perf_counter() - begin) * 1e3)
        await asyncio.sleep(pause_s)
    return sorted(times)


async def until(condition: Callable[[], bool], within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - what is waited for signals nobody
            await asyncio.sleep(0.01)
