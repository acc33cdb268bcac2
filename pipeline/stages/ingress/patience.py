"""Patience: how long the server waits for a client to read."""

import asyncio
import socket

_POLL_S = 0.02


def unread_bytes(transport: asyncio.Transport) -> int:
    """What waits in this process to be sent.

    A TLS transport that was closed twice has lost what it could ask: on asyncio's loop and on uvloop's.
    """
    try:
        return transport.get_write_buffer_size()
    except AttributeError:
        return 0


async def until_read(transport: asyncio.Transport, max_unread_bytes: int, timeout_s: float) -> None:
    """Wait until at most `max_unread_bytes` are unread; past `timeout_s` the connection is aborted.

    Polls, and only while there is too much: a transport has one pair of water marks, and it is aiohttp's.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while unread_bytes(transport) > max_unread_bytes:  # noqa: ASYNC110 - see above
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        transport.abort()


def lose_silent_peer(transport: asyncio.Transport, timeout_s: float) -> None:
    """Let the kernel drop the connection when bytes stay unacknowledged so long (RFC 5482, Linux).

    A peer that vanished without a FIN would else hold its request until its buffer is full.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout_s * 1000))
