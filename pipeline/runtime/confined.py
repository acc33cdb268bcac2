"""Confined: a process of its own for work on what strangers send, so that it hurts nobody.

The limits are the kernel's: so much CPU time for each question, so much memory over what the opening takes.
Past them it dies, or is killed once its wall-clock time is over, and the next question starts another. stdin
and stdout: a length of 4 bytes, then that many; the opening, answered by an empty body, then one answer to
each question. From the opening on it can open no file and no socket, so what it imports it imports before.
"""

import os
import resource
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO

import msgspec

LENGTH = struct.Struct("<I")
START_S = 60.0
"""What an opening may take, on a machine that is busy."""


class Bounds(msgspec.Struct, frozen=True):
    cpu_s: int
    """Of one question, and"""
    memory_bytes: int
    """of all of them together."""


class _Opening(msgspec.Struct, frozen=True):
    bounds: Bounds
    words: bytes


class Confined:
    """The server's side. One thread at a time.

    Args:
        module: is run, and calls `answer_all`.
        words: what that is opened with.
    """

    def __init__(self, module: str, words: bytes, bounds: Bounds) -> None:
        self._module = module
        self._opening = msgspec.msgpack.encode(_Opening(bounds, words))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """None: none runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """So that the first question need not wait for it. RuntimeError if it does not start."""
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it has died since the last question
        if self._process is None:
            self._process = self._started()

    def ask(self, question: bytes, timeout_s: float) -> bytes | None:
        """None: it took more time or memory than it may, or died."""
        self.start()
        process = self._process
        assert process is not None, "it is started"
        answer = _exchange(process, question, timeout_s)
        if answer is None:
            self.close()
        return answer

    def close(self) -> None:
        """Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", self._module]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        if _exchange(process, self._opening, START_S) is None:
            process.kill()
            process.communicate()
            raise RuntimeError(f"the process {self._module} does not start")
        return process


def answer_all(open_with: Callable[[bytes], Callable[[bytes], bytes]]) -> None:
    """The process's side, until stdin ends. `open_with` gets the words, and what it returns each question."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's, which closes stdin
    opening = msgspec.msgpack.decode(_next(sys.stdin.buffer) or b"", type=_Opening)
    answer = open_with(opening.words)
    _limit_memory(opening.bounds.memory_bytes)
    for none in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
        resource.setrlimit(none, (0, 0))
    _write(sys.stdout.buffer, b"")
    while (question := _next(sys.stdin.buffer)) is not None:
        _limit_time(opening.bounds.cpu_s)
        _write(sys.stdout.buffer, answer(question))


def _write(stream: IO[bytes], body: bytes) -> None:
    stream.write(LENGTH.pack(len(body)))
    stream.write(body)
    stream.flush()


def _next(stream: IO[bytes]) -> bytes | None:
    """None: the end."""
    head = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


def _exchange(process: subprocess.Popen[bytes], body: bytes, timeout_s: float) -> bytes | None:
    """None: there is no answer within the time, or it has died."""
    until_s = time.monotonic() + timeout_s
    assert process.stdin is not None
    try:
        _write(process.stdin, body)
        head = _read(process, LENGTH.size, until_s)
        return None if head is None else _read(process, LENGTH.unpack(head)[0], until_s)
    except OSError:  # it dies
        return None


def _read(process: subprocess.Popen[bytes], size: int, until_s: float) -> bytes | None:
    assert process.stdout is not None
    stdout, read = process.stdout.fileno(), bytearray()
    while len(read) < size:
        poll = select.poll()  # not select: descriptors of a busy server are above 1024
        poll.register(stdout, select.POLLIN)
        if not poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
            return None
        part = os.read(stdout, size - len(read))
        if not part:
            return None
        read += part
    return bytes(read)


def _limit_memory(num_bytes: int) -> None:
    with open("/proc/self/statm") as statm:
        num_pages = int(statm.read().split()[0])
    limit = num_pages * resource.getpagesize() + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _limit_time(cpu_s: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + 1 + cpu_s
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
