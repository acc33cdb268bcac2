"""`python -m tests.confined_worker`: does what a confined process should not, when it is asked to."""

import socket
import time
from collections.abc import Callable

from pipeline.runtime.confined import answer_all


def _opened(words: bytes) -> Callable[[bytes], bytes]:
    def answer(question: bytes) -> bytes:
        try:
            return words + ASKED[question.decode()]()
        except (OSError, MemoryError) as error:
            return type(error).__name__.encode()

    return answer


def _file() -> bytes:
    with open("pyproject.toml", "rb") as file:
        return file.read()


def _socket() -> bytes:
    socket.socket().close()
    return b"open"


def _sleep() -> bytes:
    time.sleep(60)
    return b"awake"


def _spin() -> bytes:
    while True:
        pass


ASKED: dict[str, Callable[[], bytes]] = {
    "hello": lambda: b"hello",
    "large": lambda: bytes(3_000_000),
    "file": _file,
    "socket": _socket,
    "sleep": _sleep,
    "spin": _spin,
    "memory": lambda: bytes(1 << 30)[:1],
}


if __name__ == "__main__":
    answer_all(_opened)
