"""Feed: one reading of the server, twice a second, for everybody who looks; nothing while nobody does."""

import asyncio
from collections.abc import Callable


class Feed:
    """Single loop. Whoever is slow misses readings, and keeps nobody waiting.

    Args:
        read: makes what all are told; called once a tick.
        tick_s: between readings.
    """

    def __init__(self, read: Callable[[], bytes], tick_s: float) -> None:
        self._read = read
        self._tick_s = tick_s
        self._waiting: list[asyncio.Future[bytes]] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Nobody looks, and nothing is read."""
        return self._timer is None

    async def next(self) -> bytes:
        """The next reading. Raises what `read` raised."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        self._waiting.append(future)
        if self._timer is None:
            self._timer = loop.call_later(self._tick_s, self._tick, loop)
        return await future

    def close(self) -> None:
        """Stop reading."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = [future for future in self._waiting if not future.done()]
        self._waiting.clear()
        if not waiting:
            self._timer = None
            return
        self._timer = loop.call_later(self._tick_s, self._tick, loop)
        try:
            reading = self._read()
        except Exception as error:
            for future in waiting:
                future.set_exception(error)
            return
        for future in waiting:
            future.set_result(reading)
