"""How one connection is read on purpose: slowly, with a pause, or not to the end."""

import asyncio
from collections.abc import Callable

from loadgen.behaviours import Conduct
from loadgen.record import Record


class Manners:
    """Acts on a request's `conduct` as its bytes come.

    Args:
        leave: ends the request from the client's side.
    """

    def __init__(
        self, conduct: Conduct, record: Record, transport: asyncio.Transport, leave: Callable[[], None]
    ) -> None:
        self._conduct = conduct
        self._record = record
        self._transport = transport
        self._leave = leave
        self._num_chunks = 0
        self._num_tokens = 0
        self._has_paused = False
        self._held_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def progressed(self) -> None:
        """Tokens may have come; they are in the record."""
        new = self._record.chunk_tokens[self._num_chunks :]
        self._num_chunks += len(new)
        self._num_tokens += sum(count or 1 for count in new)
        conduct = self._conduct
        if conduct.cancel_after is not None and self._num_tokens >= conduct.cancel_after:
            self._leave()
        elif self._is_time_to_pause():
            self._has_paused = True
            self._hold(conduct.pause_s)

    def read(self, num_bytes: int) -> None:
        """So many bytes were read from the connection, which is this request's own."""
        if self._conduct.bytes_per_s is not None:
            self._hold(num_bytes / self._conduct.bytes_per_s)

    def _is_time_to_pause(self) -> bool:
        after = self._conduct.pause_after
        return after is not None and self._num_tokens >= after and not self._has_paused

    def _hold(self, seconds: float) -> None:
        """Reads nothing for so long, and for what it was to wait already."""
        if self._transport.is_closing():
            return
        loop = asyncio.get_running_loop()
        self._held_until_s = max(self._held_until_s, loop.time()) + seconds
        if self._timer is not None:
            self._timer.cancel()
        self._transport.pause_reading()
        self._timer = loop.call_at(self._held_until_s, self._resume)

    def _resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()
