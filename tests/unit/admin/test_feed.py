"""The feed: one reading for all who wait, none while nobody does."""

import asyncio

import pytest

from pipeline.admin.feed import Feed


class Readings:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> bytes:
        self.count += 1
        if self.count == 3:
            raise ValueError("the third is broken")
        return b"%d" % self.count


async def until_idle(feed: Feed) -> None:
    async with asyncio.timeout(2):
        while not feed.is_idle:  # noqa: ASYNC110 - it signals nobody
            await asyncio.sleep(0.005)


def test_all_who_wait_are_told_the_same() -> None:
    async def main() -> None:
        read = Readings()
        feed = Feed(read, 0.01)
        assert feed.is_idle
        assert await asyncio.gather(feed.next(), feed.next(), feed.next()) == [b"1"] * 3
        assert not feed.is_idle and read.count == 1
        assert await feed.next() == b"2"
        await until_idle(feed)
        await asyncio.sleep(0.05)
        assert read.count == 2

    asyncio.run(main())


def test_whoever_leaves_is_forgotten() -> None:
    async def main() -> None:
        read = Readings()
        feed = Feed(read, 0.01)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await feed.next()
        await until_idle(feed)
        assert read.count == 0
        assert await feed.next() == b"1"  # and it begins again

    asyncio.run(main())


def test_a_reading_that_fails_is_told_and_the_next_one_made() -> None:
    async def main() -> None:
        feed = Feed(Readings(), 0.01)
        assert [await feed.next(), await feed.next()] == [b"1", b"2"]
        with pytest.raises(ValueError, match="third"):
            await feed.next()
        assert await feed.next() == b"4"
        feed.close()
        assert feed.is_idle

    asyncio.run(main())
