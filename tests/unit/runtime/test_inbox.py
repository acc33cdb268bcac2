"""Inbox: two lanes, bounded, closing; nothing is lost or doubled however calls interleave."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import InboxClosed
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.testing import ManualClock

MS = 1_000_000


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 5))


def test_offer_is_refused_when_full_and_counted() -> None:
    inbox: Inbox[int] = Inbox(2)
    assert [inbox.offer(k) for k in range(3)] == [True, True, False]
    stats = inbox.stats()
    assert (stats.depth, stats.bound, stats.peak_depth, stats.sent, stats.refused) == (2, 2, 2, 2, 1)
    assert inbox.room() == 0


def test_control_is_read_before_data_and_has_no_bound() -> None:
    async def main() -> None:
        inbox: Inbox[str] = Inbox(1)
        inbox.offer("data")
        for k in range(5):
            inbox.post(f"control {k}")
        assert await inbox.recv_many() == [*(f"control {k}" for k in range(5)), "data"]

    run(main())


def test_limit_zero_waits_for_control_and_leaves_data_queued() -> None:
    async def main() -> None:
        inbox: Inbox[str] = Inbox(4)
        inbox.offer("data")
        reader = asyncio.create_task(inbox.recv_many(0))
        await asyncio.sleep(0)
        inbox.offer("more")
        await asyncio.sleep(0)
        assert not reader.done()
        inbox.post("control")
        assert await reader == ["control"]
        assert await inbox.recv_many() == ["data", "more"]

    run(main())


def test_send_waits_for_room_and_keeps_order() -> None:
    async def main() -> None:
        inbox: Inbox[int] = Inbox(1)
        senders = [asyncio.create_task(inbox.send(k)) for k in range(4)]
        got: list[int] = []
        while len(got) < 4:
            got += await inbox.recv_many()
        await asyncio.gather(*senders)
        assert got == [0, 1, 2, 3]
        assert inbox.stats().blocked == 3

    run(main())


def test_close_gives_the_rest_then_nothing_and_refuses_senders() -> None:
    async def main() -> None:
        inbox: Inbox[int] = Inbox(1)
        inbox.offer(1)
        sender = asyncio.create_task(inbox.send(2))
        await asyncio.sleep(0)
        inbox.close()
        with pytest.raises(InboxClosed):
            await sender
        with pytest.raises(InboxClosed):
            inbox.offer(3)
        assert await inbox.recv_many() == [1]
        assert await inbox.recv_many() == []
        inbox.post(4)
        assert await inbox.recv_control() == [4]

    run(main())


def test_when_room_calls_back_once() -> None:
    async def main() -> None:
        inbox: Inbox[int] = Inbox(1)
        inbox.offer(1)
        calls: list[str] = []
        inbox.when_room(lambda: calls.append("room"))
        assert calls == []
        await inbox.recv_many()
        inbox.offer(2)
        await inbox.recv_many()
        assert calls == ["room"]

    run(main())


def test_a_pool_shares_the_work() -> None:
    async def main() -> None:
        inbox: Inbox[int] = Inbox(64)
        taken: list[list[int]] = [[], [], []]

        async def worker(index: int) -> None:
            while batch := await inbox.recv_many(2):
                taken[index] += batch
                await asyncio.sleep(0.001)

        workers = [asyncio.create_task(worker(k)) for k in range(3)]
        await asyncio.sleep(0)
        for k in range(30):
            inbox.offer(k)
        inbox.close()
        await asyncio.gather(*workers)
        assert sorted(k for each in taken for k in each) == list(range(30))
        assert all(len(each) >= 6 for each in taken)

    run(main())


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(["send", "recv", "recv 0", "cancel send", "cancel recv", "post", "offer"]),
        max_size=60,
    ),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_nothing_is_lost_or_doubled(ops: list[str], bound: int, num_readers: int) -> None:
    async def main() -> None:
        inbox: Inbox[int] = Inbox(bound)
        sent: list[int] = []
        got: list[int] = []
        sends: list[asyncio.Task[None]] = []
        reads: list[asyncio.Task[None]] = []

        async def put(k: int) -> None:
            await inbox.send(k)
            sent.append(k)

        async def take(limit: int) -> None:
            got.extend(await inbox.recv_many(limit))

        for k, op in enumerate(ops):
            live = [task for task in reads if not task.done()]
            if op == "send":
                sends.append(asyncio.create_task(put(k)))
            elif op == "post":
                inbox.post(k)
                sent.append(k)
            elif op == "offer" and inbox.offer(k):
                sent.append(k)
            elif op == "cancel send" and sends:
                sends[-1].cancel()
            elif op == "cancel recv" and live:
                live[0].cancel()
            elif op.startswith("recv") and len(live) < num_readers:
                reads.append(asyncio.create_task(take(0 if op == "recv 0" else 1)))
            if k % 3:
                await asyncio.sleep(0)
            assert inbox.stats().depth <= bound
        for task in reads:
            task.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        while any(not task.done() for task in sends):
            await asyncio.sleep(0)
            if inbox.stats().depth:
                got.extend(await inbox.recv_many())
        inbox.close()
        while batch := await inbox.recv_many():
            got.extend(batch)
        assert sorted(got) == sorted(sent)

    run(main())


def test_how_long_senders_waited_for_room_adds_up_while_they_wait() -> None:
    async def main() -> None:
        clock = ManualClock(100)
        inbox: Inbox[int] = Inbox(1, clock)
        await inbox.send(1)
        assert inbox.stats().blocked_ns == 0
        first = asyncio.create_task(inbox.send(2))
        await asyncio.sleep(0)
        clock.advance(10)
        second = asyncio.create_task(inbox.send(3))
        await asyncio.sleep(0)
        clock.advance(5)
        assert inbox.stats().blocked_ns == 15 + 5, "those that still wait count"
        second.cancel()
        await asyncio.wait([second])
        clock.advance(100)
        assert await inbox.recv_many() == [1]
        await first
        assert inbox.stats().blocked_ns == 115 + 5
        clock.advance(7)
        assert inbox.stats().blocked_ns == 120 and inbox.stats().blocked == 2

    asyncio.run(main())


def test_how_long_each_message_waited_is_kept_by_lane() -> None:
    async def main() -> None:
        clock = ManualClock(1)
        inbox: Inbox[int] = Inbox(8, clock)
        for message in range(3):
            assert inbox.offer(message)
            clock.advance(MS)
        inbox.post(9)
        clock.advance(MS)
        assert await inbox.recv_many(limit=2) == [9, 0, 1]
        assert inbox.control_waits.total == MS
        assert inbox.data_waits.total == (4 + 3) * MS and inbox.data_waits.count == 2
        clock.advance(MS)
        assert await inbox.recv_many() == [2]
        assert inbox.data_waits.total == (4 + 3 + 3) * MS and inbox.data_waits.count == 3
        assert inbox.control_waits.count == 1

    asyncio.run(main())
