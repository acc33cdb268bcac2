"""A server whose clients fall silent: their packets are dropped, and no FIN or RST tells.

    unshare --net python -m tests.e2e.silent_peer

Alone in a network namespace, with its clients in another one, at the other end of a veth pair. When both
stream, the clients' address is taken away: from then on their kernel drops what comes, without a word.
Prints, as JSON, how long after that the server was rid of each.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable

import aiohttp

from pipeline.checkpoint.fake import byte_card
from tests.e2e.faults import Price, device
from tests.e2e.world import Server, serving

HEARTBEAT_S = 1.0
HERE, THERE = "10.7.0.1", "10.7.0.2"
TOML = f"""
[stages.ingress.options]
host = "{HERE}"
ping_interval_s = {HEARTBEAT_S}
"""
ENDLESS = {"prompt": "Hi", "max_tokens": 8000, "ignore_eos": True}


def ip(*args: str, inside: int | None = None) -> str:
    enter = ["nsenter", "--net", "--target", str(inside)] if inside else []
    return subprocess.run([*enter, "ip", *args], check=True, capture_output=True, text=True).stdout


def connect(client: int) -> None:
    """A veth pair from here to the namespace of process `client`, both ends up."""
    ip("link", "set", "lo", "up")
    ip("link", "add", "here", "type", "veth", "peer", "name", "there")
    ip("link", "set", "there", "netns", str(client))
    ip("addr", "add", f"{HERE}/24", "dev", "here")
    ip("link", "set", "here", "up")
    ip("addr", "add", f"{THERE}/24", "dev", "there", inside=client)
    ip("link", "set", "there", "up", inside=client)
    told = json.loads(ip("-json", "link", "show", "there", inside=client))
    # else the kernel here would notice that nobody answers who has the address, and say so
    ip("neigh", "replace", THERE, "lladdr", told[0]["address"], "dev", "here", "nud", "permanent")


async def stream(url: str) -> None:
    """What the clients' process runs: both kinds, until it is killed."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{url}/v1/stream") as ws,
        session.post(f"{url}/v1/completions", json=ENDLESS | {"stream": True}) as sse,
    ):
        await ws.send_json({"type": "generate", "id": "a", **ENDLESS})
        while (await ws.receive_json())["type"] != "delta":
            pass
        await sse.content.readline()
        print("both stream", flush=True)
        await asyncio.gather(drained(ws), sse.content.read(), return_exceptions=True)
        await asyncio.sleep(3600)


async def drained(ws: aiohttp.ClientWebSocketResponse) -> None:
    async for _ in ws:
        pass


async def serve() -> dict[str, float]:
    async with serving(byte_card(), device(Price(5)), TOML) as server:
        url = server.url.replace("127.0.0.1", HERE)
        command = ["unshare", "--net", sys.executable, "-m", "tests.e2e.silent_peer", "stream"]
        client = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert client.stdin is not None and client.stdout is not None
        try:
            assert await client.stdout.readline() == b"in a namespace\n"
            await asyncio.to_thread(connect, client.pid)
            client.stdin.write(f"{url}\n".encode())
            assert await client.stdout.readline() == b"both stream\n"
            await asyncio.to_thread(ip, "addr", "del", f"{THERE}/24", "dev", "there", inside=client.pid)
            return await freed(server)
        finally:
            client.kill()
            await client.wait()


async def freed(server: Server) -> dict[str, float]:
    """Seconds until each kind's request had left the scheduler."""
    begin = time.monotonic()
    first, second = sorted(server.scheduler._live)  # the event stream asked first
    left: dict[str, Callable[[], bool]] = {
        "sse": lambda: first not in server.scheduler._live,
        "websocket": lambda: second not in server.scheduler._live,
    }
    took: dict[str, float] = {}
    while len(took) < 2 and time.monotonic() - begin < 20 * HEARTBEAT_S:
        for kind, is_gone in left.items():
            if kind not in took and is_gone():
                took[kind] = time.monotonic() - begin
        await asyncio.sleep(0.01)
    return took


if __name__ == "__main__":
    if sys.argv[1:] == ["stream"]:
        print("in a namespace", flush=True)
        asyncio.run(stream(sys.stdin.readline().strip()))
    else:
        print(json.dumps(asyncio.run(serve())))
