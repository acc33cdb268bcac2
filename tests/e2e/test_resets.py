"""R5: a storm of clients that reset their connections in the middle of a stream."""

import asyncio
import json
import os
import socket
import struct
import sys

import pytest

from pipeline.checkpoint.card import ModelCard
from pipeline.core.framing import text_frame
from pipeline.messages import DeviceReady
from tests.e2e.faults import Price, device
from tests.e2e.raw_http import Door, post, until
from tests.e2e.world import serving

NUM_CLIENTS = 300
WIDE = DeviceReady(num_blocks=8192, block_size=16, max_num_seqs=320, max_num_batched_tokens=4096)
ROOM = "stages.tokenize.inbox = 512\nstages.schedule.options.max_wait_ms = 0\n"
"""All come at once, and nobody is refused."""
ENDLESS = {"prompt": "Hi", "max_tokens": 1000, "ignore_eos": True}
UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def masked(payload: bytes) -> bytes:
    """A client's text frame with a mask of zeros."""
    frame = text_frame(payload)
    head = len(frame) - len(payload)
    return frame[:1] + bytes((frame[1] | 0x80,)) + frame[2:head] + bytes(4) + payload


async def stream_and_reset(door: Door, is_socket: bool, now: asyncio.Event) -> None:
    reader, writer = await door.connect()
    if is_socket:
        frame = json.dumps({"type": "generate", "id": "a", **ENDLESS}).encode()
        writer.write(UPGRADE + masked(frame))
        await reader.readuntil(b'"type":"delta"')
    else:
        writer.write(post(json.dumps(ENDLESS | {"stream": True}).encode()))
        await reader.readuntil(b"data: {")
    await now.wait()
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def num_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts files in Linux's /proc")
def test_a_storm_of_resets_leaves_nothing_behind(fake_card: ModelCard) -> None:
    """Live 0, all blocks free, tasks and files as before, within a second."""

    async def main() -> None:
        async with serving(fake_card, device(Price(20), WIDE), ROOM) as server:
            door, num_before = Door.of(server, is_tls=False), num_files()
            now = asyncio.Event()
            storm = [asyncio.create_task(stream_and_reset(door, k % 2 == 0, now)) for k in range(NUM_CLIENTS)]
            await until(lambda: server.num_live == NUM_CLIENTS or any(each.done() for each in storm), 20)
            await asyncio.sleep(0.3)  # all have had their first text
            now.set()
            await asyncio.wait_for(asyncio.gather(*storm), 20)
            await server.rest(1.0)
            await until(lambda: num_files() <= num_before, 1.0)

    asyncio.run(main())
