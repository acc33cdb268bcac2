"""TCP (and TLS) connections to one server."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

_P = TypeVar("_P", bound=asyncio.Protocol)
_CONNECT_S = 10.0
_SMALL_BUFFER_BYTES = 4096
"""What a slow reader leaves to the kernel: the server feels it after this much, not after megabytes."""


class Dialer:
    """Opens connections to the host in `url`. The name is looked up once, at the first."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host = parts.netloc
        self.path = parts.path.rstrip("/")
        self._name = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (80 if self._tls is None else 443)
        self._addresses: list[tuple[str, int]] = []

    async def open(self, protocol: Callable[[], _P], *, is_small: bool = False) -> _P:
        """A connected protocol; `is_small`: with a receive buffer of a few kilobytes.

        Raises:
            OSError: no address answers within 10 s.
        """
        async with asyncio.timeout(_CONNECT_S):
            for number, address in enumerate(await self._resolved()):
                try:
                    made = await self._open_at(address, protocol, is_small=is_small)
                except OSError:
                    if number + 1 == len(self._addresses):
                        raise
                else:
                    self._addresses.insert(0, self._addresses.pop(number))
                    return made
        raise OSError(f"{self._name} has no address")

    async def _resolved(self) -> list[tuple[str, int]]:
        if not self._addresses:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(self._name, self._port, type=socket.SOCK_STREAM)
            self._addresses = [(str(at[0]), int(at[1])) for _, _, _, _, at in found]
        return list(self._addresses)

    async def _open_at(self, address: tuple[str, int], protocol: Callable[[], _P], *, is_small: bool) -> _P:
        loop = asyncio.get_running_loop()
        name = None if self._tls is None else self._name
        if not is_small:  # the loop's own way costs half of a socket made here
            _, made = await loop.create_connection(protocol, *address, ssl=self._tls, server_hostname=name)
            return made
        sock = await _small_socket(loop, address)
        try:
            _, made = await loop.create_connection(protocol, sock=sock, ssl=self._tls, server_hostname=name)
        except BaseException:
            sock.close()
            raise
        return made


async def _small_socket(loop: asyncio.AbstractEventLoop, address: tuple[str, int]) -> socket.socket:
    """Connected; its buffer is set before, for the window that the server is offered depends on it."""
    sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER_BYTES)
        await loop.sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock
