"""Patience: how long the server waits for a client to read."""

import asyncio

_POLL_S = 0.02


async def until_read(transport: asyncio.Transport, max_unread_bytes: int, timeout_s: float) -> None:
    """Wait until at most `max_unread_bytes` are unread; past `timeout_s` the connection is aborted.

    Polls, and only while there is too much: a transport has one pair of water marks, and it is aiohttp's.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while transport.get_write_buffer_size() > max_unread_bytes:  # noqa: ASYNC110 - see above
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        transport.abort()
