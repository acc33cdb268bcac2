"""Choice: one outlet to several inboxes, which looks at each message to know where it goes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from pipeline.runtime.inbox import Inbox

M = TypeVar("M")


class Way(NamedTuple, Generic[M]):
    inbox: Inbox[M]
    takes: Callable[[M], bool]


class Choice(Generic[M]):
    """An Outlet. Each message goes to the first way that takes it, else to `otherwise`; full is what is full
    there, so that no other waits for it.
    """

    def __init__(self, ways: Sequence[Way[M]], otherwise: Inbox[M]) -> None:
        self._ways = ways
        self._otherwise = otherwise
        self._inboxes = (*(way.inbox for way in ways), otherwise)
        self._callbacks: list[Callable[[], None]] = []
        self._watched: set[Inbox[M]] = set()
        """Inboxes that will tell when room is made: each is asked once."""

    def offer(self, message: M) -> bool:
        return self._inbox_for(message).offer(message)

    async def send(self, message: M) -> None:
        await self._inbox_for(message).send(message)

    def post(self, message: M) -> None:
        self._inbox_for(message).post(message)

    def room(self) -> int:
        """How many `offer`s in a row would succeed now, whatever is offered."""
        return min(inbox.room() for inbox in self._inboxes)

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back once, the next time that room is made in any of them: whoever waits looks again."""
        self._callbacks.append(callback)
        for inbox in self._inboxes:
            if inbox not in self._watched:
                self._watched.add(inbox)
                inbox.when_room(partial(self._made_room, inbox))

    def _inbox_for(self, message: M) -> Inbox[M]:
        for way in self._ways:
            if way.takes(message):
                return way.inbox
        return self._otherwise

    def _made_room(self, inbox: Inbox[M]) -> None:
        self._watched.remove(inbox)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
