"""Which sockets a process listens on, from Linux's /proc."""

import os
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

_LISTEN = "0A"
_WORD = 8
"""Hex digits of a word of an address, in the byte order of the machine: little-endian."""


class Listening(NamedTuple):
    """A TCP socket; addresses as text."""

    address: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return ip_address(self.address).is_loopback


def listening(pid: int) -> list[Listening]:
    """Sockets of a process, of TCP over IPv4 and IPv6, that take connections from others."""
    ours = _inodes(pid)
    found = []
    for table in ("tcp", "tcp6"):
        for line in _lines(pid, table):
            fields = line.split()
            if fields[3] == _LISTEN and fields[9] in ours:
                found.append(_parsed(fields[1]))
    return sorted(found)


def datagrams(pid: int) -> list[str]:
    """Sockets that hear of strangers without a connection: UDP and raw, by their local addresses."""
    ours = _inodes(pid)
    tables = ("udp", "udp6", "raw", "raw6", "udplite")
    return [line.split()[1] for table in tables for line in _lines(pid, table) if line.split()[9] in ours]


def named_unix_sockets(pid: int) -> list[str]:
    """Unix sockets with a name, that others could connect to."""
    ours = _inodes(pid)
    rows = [line.split() for line in _lines(pid, "unix")]
    return [row[7] for row in rows if len(row) > 7 and row[6] in ours]


def children(pid: int) -> list[int]:
    """Processes that any thread of this one has started."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def _inodes(pid: int) -> set[str]:
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            target = os.readlink(fd)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def _lines(pid: int, table: str) -> list[str]:
    file = Path(f"/proc/{pid}/net/{table}")
    return file.read_text().splitlines()[1:] if file.exists() else []


def _parsed(text: str) -> Listening:
    address, _, port = text.partition(":")
    words = [address[k : k + _WORD] for k in range(0, len(address), _WORD)]
    packed = b"".join(bytes.fromhex(word)[::-1] for word in words)
    return Listening(str(ip_address(packed)), int(port, 16))
