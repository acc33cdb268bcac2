"""Hold: what a stage does to the outside, kept until it is known to be right.

A stage that is on trial handles a batch; only when it has done so without a fault does the outside see any of
it. Between two batches, and once the trial is over, everything passes at once.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from pipeline.runtime.inbox import Inbox


class _Kept(NamedTuple):
    do: Callable[..., Any]
    args: tuple[Any, ...]
    waits: bool = False


class Hold:
    """An ordered list of what is to be done, from `begin` to `commit`."""

    def __init__(self) -> None:
        self.is_on = False
        self._is_sealed = False
        self._kept: deque[_Kept] = deque()

    def begin(self) -> None:
        """From now on all is kept."""
        self.is_on = True

    def seal(self) -> None:
        """From now on nothing is done, nor what is kept, whoever asks: the stage has been given up."""
        self.is_on = self._is_sealed = True
        self._kept.clear()

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call it now, or on commit."""
        if not self.is_on:
            function(*args)
        elif not self._is_sealed:
            self._kept.append(_Kept(function, args))

    def keep_sending(self, inbox: Inbox[Any], message: object) -> None:
        """Send it on commit. Only while `is_on`."""
        if not self._is_sealed:
            self._kept.append(_Kept(inbox.send, (message,), waits=True))

    def num_kept(self, function: Callable[..., object]) -> int:
        """Calls of it that are kept."""
        return sum(kept.do == function for kept in self._kept)

    async def commit(self) -> None:
        """Do all that is kept, in its order, what comes meanwhile included; waits where an inbox is full."""
        while self._kept:
            each = self._kept.popleft()
            if each.waits:
                await each.do(*each.args)
            else:
                each.do(*each.args)
        self.is_on = False


class HeldOutlet:
    """An outlet that keeps what is sent while its hold is on."""

    def __init__(self, inbox: Inbox[Any], hold: Hold) -> None:
        self._inbox = inbox
        self._hold = hold

    def offer(self, message: Any) -> bool:
        """While it is held, True means that there is room for all that was offered so far."""
        if not self._hold.is_on:
            return self._inbox.offer(message)
        if not self.room():
            return False
        self._hold.call(self._offer, message)
        return True

    async def send(self, message: Any) -> None:
        if self._hold.is_on:
            self._hold.keep_sending(self._inbox, message)
        else:
            await self._inbox.send(message)

    def post(self, message: Any) -> None:
        self._hold.call(self._inbox.post, message)

    def room(self) -> int:
        return max(0, self._inbox.room() - self._hold.num_kept(self._offer))

    def when_room(self, callback: Callable[[], None]) -> None:
        self._inbox.when_room(callback)

    def _offer(self, message: Any) -> None:
        if not self._inbox.offer(message):
            raise AssertionError("there was room when it was offered, and nobody else sends there")
