"""TLS connections that end oddly: what they do to the server that writes to them."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pipeline.checkpoint.card import ModelCard
from pipeline.runtime.testing import FakeRunner
from pipeline.stages.ingress.patience import unread_bytes
from pipeline.stages.ingress.site import tls_context
from tests.e2e.raw_http import Door, certificate, trusting_nobody
from tests.e2e.saying import ROOM
from tests.e2e.world import serving

Run = Callable[[Coroutine[Any, Any, None]], None]
BOTH_LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


@BOTH_LOOPS
def test_what_is_unread_can_be_asked_however_often_a_connection_was_closed(
    files: tuple[Path, Path], run: Run
) -> None:
    async def main() -> None:
        accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        context = tls_context(*map(str, files))
        server = await asyncio.start_server(
            lambda _, writer: accepted.put_nowait(writer), "127.0.0.1", 0, ssl=context
        )
        port = server.sockets[0].getsockname()[1]
        _, client = await Door(port, trusting_nobody()).connect()
        transport = (await accepted.get()).transport
        for _ in range(3):
            transport.close()
            unread_bytes(transport)
        transport.abort()
        await asyncio.sleep(0.05)
        num_bytes = unread_bytes(transport)
        client.transport.abort()
        server.close()
        await asyncio.sleep(0.05)
        assert num_bytes == 0

    run(main())


@BOTH_LOOPS
def test_streams_that_are_dropped_at_any_time_cost_nobody_else_anything(
    fake_card: ModelCard, files: tuple[Path, Path], run: Run
) -> None:
    """By an abort below TLS, or by its goodbye, while text is written."""
    toml = f'[stages.ingress.options]\ntls_cert = "{files[0]}"\ntls_key = "{files[1]}"\n'
    body = b'{"prompt":"Hi","max_tokens":3000,"ignore_eos":true,"stream":true,"n":4}'
    request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async def main() -> None:
        async with serving(fake_card, lambda: FakeRunner(ROOM), toml) as server:
            door = Door.of(server, is_tls=True)

            async def one(number: int) -> None:
                reader, writer = await door.connect()
                writer.write(request)
                await reader.readexactly(400 * (number % 5 + 1))
                if number % 2:
                    writer.transport.abort()
                else:
                    writer.close()

            await asyncio.gather(*(one(number) for number in range(20)))
            await server.rest()
            assert await door.say(
                b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 5, ends=False
            )

    run(main())
