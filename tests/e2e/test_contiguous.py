"""The baseline allocation through a whole server: the same texts, in ranges."""

import asyncio

import pytest

from pipeline import assemble
from pipeline import config as configuration
from pipeline.checkpoint.card import ModelCard
from pipeline.core.contiguous_pool import ContiguousPool
from pipeline.errors import ConfigError
from tests.e2e.test_prefix_cache import CRAMPED, OFF, ReadingRunner, conversations
from tests.e2e.world import serving

RANGES = OFF + 'allocation = "contiguous"\n'


def test_texts_are_those_of_a_paged_server(fake_card: ModelCard) -> None:
    async def texts(toml: str) -> list[str]:
        async with serving(fake_card, lambda: ReadingRunner(CRAMPED), toml) as server:
            told = await conversations(server)
            await server.rest()
            is_contiguous = isinstance(server.scheduler.pool, ContiguousPool)
            assert is_contiguous == (toml == RANGES)
            assert bool(server.scheduler.num_preemptions) != is_contiguous, "nobody has to grow in a range"
            return told

    assert asyncio.run(texts(RANGES)) == asyncio.run(texts(OFF))


def test_ranges_are_not_shared() -> None:
    toml = '[stages.schedule.options]\nallocation = "contiguous"\n'
    with pytest.raises(ConfigError, match=r'allocation = "contiguous": .*prefix_cache must be false'):
        assemble.check(configuration.loads(toml, "test.toml"))
