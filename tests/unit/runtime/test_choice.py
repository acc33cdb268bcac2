"""One outlet to several inboxes."""

import asyncio
from collections.abc import Callable

import pytest

from pipeline.errors import InboxClosed
from pipeline.runtime.choice import Choice, Way
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import Outlet


def three() -> tuple[Choice[int], list[Inbox[int]]]:
    """Below 10, below 100, and the rest; room for 2 in each."""
    inboxes = [Inbox[int](2) for _ in range(3)]
    below: Callable[[int], Callable[[int], bool]] = lambda end: lambda value: value < end  # noqa: E731
    return Choice([Way(inboxes[0], below(10)), Way(inboxes[1], below(100))], inboxes[2]), inboxes


def test_the_first_that_takes_a_message_gets_it() -> None:
    async def main() -> None:
        choice, inboxes = three()
        outlet: Outlet[int] = choice
        assert outlet.offer(1)
        await outlet.send(50)
        outlet.post(500)
        outlet.post(2)
        assert [await inbox.recv_many() for inbox in inboxes] == [[2, 1], [50], [500]]

    asyncio.run(main())


def test_one_that_is_full_holds_no_other_up() -> None:
    async def main() -> None:
        choice, inboxes = three()
        assert choice.offer(1) and choice.offer(2) and not choice.offer(3)
        waiting = asyncio.ensure_future(choice.send(4))
        await asyncio.sleep(0)
        assert choice.offer(50) and not waiting.done()
        assert await inboxes[0].recv_many() == [1, 2]
        await waiting
        assert await inboxes[0].recv_many() == [4]

    asyncio.run(main())


def test_room_is_what_any_message_finds() -> None:
    async def main() -> None:
        choice, _ = three()
        assert choice.room() == 2
        assert choice.offer(50)
        assert choice.room() == 1
        assert choice.offer(51)
        assert choice.room() == 0
        assert choice.offer(500)

    asyncio.run(main())


def test_whoever_waits_looks_again_wherever_room_is_made() -> None:
    async def main() -> None:
        choice, inboxes = three()
        told: list[int] = []
        assert choice.offer(1) and choice.offer(50) and choice.offer(51)
        choice.when_room(lambda: told.append(choice.room()))
        choice.when_room(lambda: told.append(-1))
        await inboxes[0].recv_many()
        assert told == [0, -1]
        await inboxes[1].recv_many()
        assert told == [0, -1], "once"
        for _ in range(3):
            assert choice.offer(50)
            choice.when_room(lambda: told.append(choice.room()))
            await inboxes[1].recv_many()
        assert told[2:] == [2, 2, 2]
        assert len(inboxes[2]._room_callbacks) == 1, "one that has no reader is asked once"

    asyncio.run(main())


def test_each_closes_for_itself() -> None:
    choice, inboxes = three()
    inboxes[0].close()
    assert choice.offer(50)
    with pytest.raises(InboxClosed):
        choice.offer(1)
