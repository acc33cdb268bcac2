"""R6: clients that ask for much and read nothing, by SSE and by websocket."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from pipeline.checkpoint.card import ModelCard
from tests.e2e.faults import ROOMY, Price, device
from tests.e2e.raw_http import Door, canary_ms, post, until
from tests.e2e.test_resets import UPGRADE, masked
from tests.e2e.test_slow_http import shrink_buffers
from tests.e2e.world import Server, serving

ENDLESS = {"prompt": "Hi", "max_tokens": 8000, "ignore_eos": True}
FEW_SLOTS = replace(ROOMY, max_num_seqs=8)
"""Fewer than there are slow readers: these give way."""
SOON = """
[stages.ingress.options]
write_timeout_s = 1.0
ping_interval_s = 1.0
[stages.stream.options]
flush_tokens = 1
client_buffer_bytes = 32768
slow_client_s = 1.0
"""
AS_THEY_ARE = "[stages.stream.options]\nflush_tokens = 1\n"
"""So that an answer is soon larger than all buffers."""


@asynccontextmanager
async def slow_readers(door: Door, each: int) -> AsyncIterator[None]:
    """So many by SSE and as many by websocket, with the smallest receive buffers."""
    asks = post(json.dumps(ENDLESS | {"stream": True}).encode())
    frame = masked(json.dumps({"type": "generate", "id": "a", **ENDLESS}).encode())
    held = []
    for data in [asks, UPGRADE + frame] * each:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", door.port))
        await loop.sock_sendall(sock, data)
        held.append(sock)
    try:
        yield
    finally:
        for sock in held:
            sock.close()


def rss_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def freed(server: Server, within_s: float) -> None:
    """No request of theirs is live, and no connection of theirs is open."""
    ingress: Any = server.pipeline.stages["ingress"][0]
    await until(lambda: not server.num_live and not ingress._websocket.sockets, within_s)


def test_slow_readers_are_freed(fake_card: ModelCard) -> None:
    """With limits of a second, so that the test is short."""

    async def main() -> None:
        async with (
            serving(fake_card, device(Price(1, row=0), FEW_SLOTS), SOON) as server,
            aiohttp.ClientSession() as session,
        ):
            shrink_buffers(server)
            door = Door.of(server, is_tls=False)
            async with slow_readers(door, 6):
                await until(lambda: server.num_live == 12, 5)
                assert len(await canary_ms(session, door, 20)) == 20
                await freed(server, 15)
            await session.close()
            await server.rest()

    asyncio.run(main())


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_with_the_limits_as_they_are(fake_card: ModelCard) -> None:
    """20 of them: memory grows by less than 20 MB, and a well-behaved client's p99 is as it is alone."""

    async def main() -> None:
        async with (
            serving(fake_card, device(Price(5, row=0), ROOMY), AS_THEY_ARE) as server,
            aiohttp.ClientSession() as session,
        ):
            shrink_buffers(server)
            door = Door.of(server, is_tls=False)
            alone = await canary_ms(session, door, 200)
            before = most = rss_mib()
            async with slow_readers(door, 10):
                await until(lambda: server.num_live == 20, 5)
                beside: list[float] = []
                async with asyncio.timeout(120):
                    while server.num_live:
                        beside += await canary_ms(session, door, 10, 0.02)
                        most = max(most, rss_mib())
                await freed(server, 30)
            beside.sort()
            p99 = beside[int(len(beside) * 0.99)]
            print(f"canary p99 {alone[197]:.1f} ms alone, {p99:.1f} ms beside; RSS +{most - before:.1f} MiB")
            assert most - before < 20 and p99 < 2 * alone[197], (alone[-10:], beside[-10:])
            await session.close()
            await server.rest()

    asyncio.run(main())
