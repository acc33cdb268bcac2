"""TCP (and TLS) connections to one server."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
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
        self._addresses: list[tuple[socket.AddressFamily, tuple[str, int]]] = []

    async def open(self, protocol: Callable[[], _P], *, is_small: bool = False) -> _P:
        """A connected protocol; `is_small`: with a receive buffer of a few kilobytes.

        Raises:
            OSError: no address answers within 10 s.
        """
        loop = asyncio.get_running_loop()
        sock = await asyncio.wait_for(self._connected(loop, is_small), _CONNECT_S)
        try:
            name = None if self._tls is None else self._name
            _, made = await loop.create_connection(protocol, sock=sock, ssl=self._tls, server_hostname=name)
        except BaseException:
            sock.close()
            raise
        return made

    async def _connected(self, loop: asyncio.AbstractEventLoop, is_small: bool) -> socket.socket:
        if not self._addresses:
            found = await loop.getaddrinfo(self._name, self._port, type=socket.SOCK_STREAM)
            self._addresses = [(family, (str(at[0]), int(at[1]))) for family, _, _, _, at in found]
        for number, (family, address) in enumerate(self._addresses):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                await _connect(loop, sock, address, is_small)
            except OSError:
                sock.close()
                if number + 1 == len(self._addresses):
                    raise
            except BaseException:
                sock.close()
                raise
            else:
                self._addresses.insert(0, self._addresses.pop(number))
                return sock
        raise OSError(f"{self._name} has no address")


async def _connect(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, address: tuple[str, int], is_small: bool
) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if is_small:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER_BYTES)
    await loop.sock_connect(sock, address)
