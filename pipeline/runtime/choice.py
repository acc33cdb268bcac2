"""Choice: one outlet to several inboxes, which looks at each message to know where it goes."""

from collections.abc import Callable, Sequence
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

    def offer(self, message: M) -> bool:
        return self._inbox_for(message).offer(message)

    async def send(self, message: M) -> None:
        await self._inbox_for(message).send(message)

    def post(self, message: M) -> None:
        self._inbox_for(message).post(message)

    def room(self) -> int:
        """How many `offer`s in a row would succeed now, whatever is offered."""
        return self._fullest().room()

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back once, the next time that the fullest inbox has room made."""
        self._fullest().when_room(callback)

    def _inbox_for(self, message: M) -> Inbox[M]:
        for way in self._ways:
            if way.takes(message):
                return way.inbox
        return self._otherwise

    def _fullest(self) -> Inbox[M]:
        return min((self._otherwise, *(way.inbox for way in self._ways)), key=lambda inbox: inbox.room())
