"""Load on a test server over its websocket: open loop, closed loop, and clients that do not read."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import aiohttp

NUMBERS = count(10_000_000)
Load = Callable[[str], Awaitable[None]]
"""Given the server's url; returns when all answers have ended."""


def frame(num_prompt: int, max_tokens: int) -> dict[str, Any]:
    """No two prompts begin alike: all of each has to be computed."""
    return {
        "type": "generate",
        "id": "r",
        "prompt": str(next(NUMBERS))[::-1].ljust(num_prompt, "x"),
        "max_tokens": max_tokens,
        "ignore_eos": True,
    }


async def ask(session: aiohttp.ClientSession, url: str, num_prompt: int, max_tokens: int) -> str:
    """One request on a socket of its own; how it ended."""
    async with session.ws_connect(f"{url}/v1/stream") as ws:
        await ws.send_json(frame(num_prompt, max_tokens))
        while True:
            answer = await ws.receive_json(timeout=30)
            if answer["type"] in ("done", "error"):
                return str(answer["type"])


def open_loop(per_s: float, seconds: float, num_prompt: int, max_tokens: int) -> Load:
    """Requests at a steady rate, whatever becomes of them."""

    async def load(url: str) -> None:
        async with aiohttp.ClientSession(connector=unlimited()) as session, asyncio.TaskGroup() as group:
            for _ in range(round(per_s * seconds)):
                group.create_task(ask(session, url, num_prompt, max_tokens))
                await asyncio.sleep(1 / per_s)

    return load


def closed_loop(num_clients: int, seconds: float, num_prompt: int, max_tokens: int) -> Load:
    """Clients that each send the next request when the last has ended."""

    async def load(url: str) -> None:
        end = asyncio.get_running_loop().time() + seconds

        async def client(session: aiohttp.ClientSession, start_s: float) -> None:
            await asyncio.sleep(start_s)
            while asyncio.get_running_loop().time() < end:
                await ask(session, url, num_prompt, max_tokens)

        async with aiohttp.ClientSession(connector=unlimited()) as session, asyncio.TaskGroup() as group:
            for k in range(num_clients):
                group.create_task(client(session, 0.5 * k / num_clients))

    return load


def both(*loads: Load) -> Load:
    """At the same time."""

    async def load(url: str) -> None:
        async with asyncio.TaskGroup() as group:
            for each in loads:
                group.create_task(_run(each, url))

    return load


async def _run(load: Load, url: str) -> None:
    await load(url)


def nothing(seconds: float) -> Load:
    async def load(url: str) -> None:
        await asyncio.sleep(seconds)

    return load


def slow_readers(num_clients: int, num_requests: int, max_tokens: int, silent_s: float) -> Load:
    """Clients that ask for much, say nothing for a while, and only then read."""

    async def client(url: str) -> None:
        async with (
            aiohttp.ClientSession(read_bufsize=1024, connector=narrow()) as session,
            session.ws_connect(f"{url}/v1/stream", max_msg_size=0) as ws,
        ):
            for k in range(num_requests):
                await ws.send_json(frame(8, max_tokens) | {"id": f"r{k}"})
            await asyncio.sleep(silent_s)
            left = num_requests
            while left:
                answer = await ws.receive_json(timeout=30)
                left -= answer["type"] in ("done", "error")

    async def load(url: str) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(num_clients):
                group.create_task(client(url))

    return load


def unlimited() -> aiohttp.TCPConnector:
    return aiohttp.TCPConnector(limit=0)


def narrow() -> aiohttp.TCPConnector:
    """Sockets with a small receive buffer: what is not read soon waits at the server."""

    def make(address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        return sock

    return aiohttp.TCPConnector(socket_factory=make)
