"""Patience: a coroutine that neither waits nor computes for longer than it may.

A stage that waits for ever is cancelled; one that blocks the loop cannot be, for the loop does not run. So
while it runs, a timer of the process is set whose signal raises inside of it. That works where signals go to
Python code: in the main thread, and not while a C function that holds the GIL computes; elsewhere only
waiting is bounded.
"""

import asyncio
import signal
import threading
from collections.abc import Coroutine, Generator
from types import FrameType
from typing import Any


class Blocked(TimeoutError):
    """It held the loop for too long."""


async def within(seconds: float, work: Coroutine[Any, Any, None], computing_s: float | None = None) -> None:
    """Run `work` to its end. Raises TimeoutError: it took longer; Blocked: it held the loop for longer.

    Args:
        computing_s: how long it may hold the loop at a stretch; None: as long as it may take.
    """
    try:
        async with asyncio.timeout(seconds):
            await (_Watched(work, computing_s or seconds) if _can_interrupt() else work)
    except Blocked:
        raise
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"it took longer than {seconds:g} s") from error


def _can_interrupt() -> bool:
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


class _Watched:
    """Each of the coroutine's runs between two waits is bounded."""

    def __init__(self, work: Coroutine[Any, Any, None], seconds: float) -> None:
        self._work = work
        self._seconds = seconds

    def __await__(self) -> Generator[Any, Any, None]:
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                waited_for = self._run(sent, thrown)
            except StopIteration:
                return
            try:
                sent, thrown = (yield waited_for), None
            except BaseException as error:
                thrown = error

    def _run(self, sent: Any, thrown: BaseException | None) -> Any:
        before = signal.signal(signal.SIGALRM, self._raise)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
        try:
            return self._work.send(sent) if thrown is None else self._work.throw(thrown)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        raise Blocked(f"it held the event loop for {self._seconds:g} s")
