"""Shadows: another stage gets a copy of live traffic; what it says is compared and never sent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pipeline.checkpoint.fake import byte_card
from pipeline.errors import SwapRefused
from pipeline.swapping import Order, Swapper
from tests.e2e.swapped import fake_text, streaming
from tests.e2e.test_swap import PacedRunner, same
from tests.e2e.world import Server, serving

nightly = pytest.mark.nightly
HERE = "tests.e2e.stages_to_swap"


@asynccontextmanager
async def shadowing() -> AsyncIterator[tuple[Server, Swapper]]:
    """Under streams whose every text is checked; nothing is left behind."""
    async with serving(byte_card(), PacedRunner, "[stages.filter]\n") as server:
        taps = {name: inbox.taps for name, inbox in server.pipeline.inboxes.items()}
        async with streaming(server.url, 6, 60, fake_text):
            await server.steps(5)
            yield server, Swapper(server.pipeline, rehearses=False)
        await server.rest()
        assert {name: inbox.taps for name, inbox in server.pipeline.inboxes.items()} == taps


@pytest.mark.parametrize(
    "name",
    [
        "detokenize",
        "stream",
        *(pytest.param(name, marks=nightly) for name in ("tokenize", "sample", "filter")),
    ],
)
def test_a_stage_says_the_same_as_itself(name: str) -> None:
    async def main() -> None:
        async with shadowing() as (server, swapper):
            seen = await swapper.shadow(name, same(server, name), 0.6)
            assert seen.reason == "" and not seen.differences
            assert seen.num_batches > 0 and seen.num_said > 0
            assert seen.num_said == seen.num_said_live or name == "stream"  # which writes as time goes by
            assert seen.us_per_message > 0 and seen.us_per_message_live > 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        pytest.param("ingress", "ingress has no State: what it knows would be lost", marks=nightly),
        ("schedule", "schedule cannot be shadowed: what it knows cannot be copied"),
        pytest.param("execute", "execute cannot be shadowed: what it knows cannot be copied", marks=nightly),
    ],
)
def test_what_cannot_be_shadowed(name: str, why: str) -> None:
    async def main() -> None:
        async with shadowing() as (server, swapper):
            with pytest.raises(SwapRefused, match=why):
                await swapper.shadow(name, same(server, name), 0.6)

    asyncio.run(main())


def test_what_is_wrong_is_told_and_never_sent() -> None:
    async def main() -> None:
        async with shadowing() as (_, swapper):
            seen = await swapper.shadow("detokenize", Order(f"{HERE}:Dropping"), 0.6)
            assert seen.num_differences > 0 and "text" in seen.differences[0]
            seen = await swapper.shadow("detokenize", Order(f"{HERE}:Loud"), 0.4)
            assert seen.num_differences > 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        pytest.param("Crashing", "ValueError: no such thing", marks=nightly),
        pytest.param("Blocking", "it held the event loop for 0.1 s", marks=nightly),
        ("Slow", "it fell 64 batches behind"),
    ],
)
def test_one_that_fails_or_falls_behind_ends_early(kind: str, reason: str) -> None:
    async def main() -> None:
        async with shadowing() as (_, swapper):
            seen = await asyncio.wait_for(swapper.shadow("detokenize", Order(f"{HERE}:{kind}"), 3600), 60)
            assert seen.reason == reason

    asyncio.run(main())
