"""Many streams, some cancelled at random points, through all stages and real sockets.

At the end of each example: every request has had exactly one ending, every text is that of the request
alone, and no block, task or socket is left.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pipeline.checkpoint.card import ModelCard
from pipeline.core.scheduling import Scheduler
from pipeline.messages import DeviceReady, SamplingParams
from pipeline.runtime.testing import CheckingRunner, fake_token
from tests.e2e.world import Server, serving

SMALL_DEVICE = DeviceReady(num_blocks=96, block_size=4, max_num_seqs=48, max_num_batched_tokens=192)
"""Too small for all at once: sequences wait, prompts are chunked, and some are preempted."""
NUM_SOCKETS = 4


@dataclass
class Asked:
    """One request of an example, and what came back."""

    prompt: str
    max_tokens: int
    seed: int
    cancel_after: int | None
    """Cancelled once this many tokens have come; 0: at once."""
    text: str = ""
    num_tokens: int = 0
    endings: list[str] = field(default_factory=list)

    def expected(self) -> str:
        sampling = SamplingParams(seed=self.seed)
        first = len(self.prompt)
        return "".join(chr(fake_token(sampling, first + k)) for k in range(self.max_tokens))

    def frame(self, name: str) -> dict[str, Any]:
        return {
            "type": "generate",
            "id": name,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "ignore_eos": True,
        }

    def check(self) -> None:
        assert len(self.endings) == 1, self
        (ending,) = self.endings
        if ending == "length":
            assert (self.text, self.num_tokens) == (self.expected(), self.max_tokens)
        else:
            assert ending == "cancelled" and self.cancel_after is not None
            assert self.expected().startswith(self.text)


@st.composite
def streams(draw: st.DrawFn, count: int = 200) -> list[Asked]:
    """`count` requests, a random third of them cancelled at a random point."""
    random = draw(st.randoms(use_true_random=False))
    asked = []
    for k in range(count):
        max_tokens = random.choice((1, 2, 3, 5, 8, 13))
        is_cancelled = random.random() < 1 / 3
        asked.append(
            Asked(
                prompt="x" * random.choice((1, 2, 3, 4, 7, 8, 30)),
                max_tokens=max_tokens,
                seed=k,
                cancel_after=random.randint(0, max_tokens) if is_cancelled else None,
            )
        )
    return asked


async def converse(session: aiohttp.ClientSession, url: str, asked: dict[str, Asked]) -> None:
    """Send all on one websocket; cancel where the example says so; leave when all have ended."""
    async with session.ws_connect(f"{url}/v1/stream") as ws:
        for name, each in asked.items():
            await ws.send_json(each.frame(name))
            if each.cancel_after == 0:
                await ws.send_json({"type": "cancel", "id": name})
        while any(not each.endings for each in asked.values()):
            frame = await ws.receive_json(timeout=10)
            each = asked[frame["id"]]
            if frame["type"] == "delta":
                assert not each.endings, "text after the end"
                before, each.num_tokens = each.num_tokens, each.num_tokens + frame["tokens"]
                each.text += frame["text"]
                if each.cancel_after and before < each.cancel_after <= each.num_tokens:
                    await ws.send_json({"type": "cancel", "id": frame["id"]})
            elif frame["type"] == "done":
                each.endings.append(frame["finish_reason"])
            else:
                assert frame["type"] == "accepted", frame


class Lasting:
    """One loop and one server for all examples of a test, so that what leaks adds up."""

    def __init__(self, card: ModelCard, device: DeviceReady) -> None:
        self._runner = asyncio.Runner()
        self._opened = serving(card, lambda: CheckingRunner(device), "[stages.tokenize]\ninbox = 512")
        self.server: Server = self._runner.run(self._opened.__aenter__())

    def run(self, asked: list[Asked]) -> None:
        self._runner.run(self._example(asked))

    async def _example(self, asked: list[Asked]) -> None:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            for k in range(NUM_SOCKETS):
                part = {f"r{i}": each for i, each in enumerate(asked) if i % NUM_SOCKETS == k}
                group.create_task(converse(session, self.server.url, part))
        for each in asked:
            each.check()
        await self.server.rest()

    def close(self) -> None:
        self._runner.run(self._opened.__aexit__(None, None, None))
        self._runner.close()


def run_examples(card: ModelCard, max_examples: int, device: DeviceReady = SMALL_DEVICE) -> Scheduler:
    lasting = Lasting(card, device)

    @settings(
        max_examples=max_examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(streams())
    def examples(asked: list[Asked]) -> None:
        lasting.run(asked)

    try:
        examples()
        return lasting.server.scheduler
    finally:
        lasting.close()


def test_two_hundred_streams_a_third_cancelled(fake_card: ModelCard) -> None:
    core = run_examples(fake_card, 25)
    assert core.num_preemptions > 0, "the device was meant to be too small"


def test_two_hundred_streams_with_kv_in_host_memory(fake_card: ModelCard) -> None:
    core = run_examples(fake_card, 25, replace(SMALL_DEVICE, num_host_blocks=30, block_copy_ns=1))
    assert core.policies.gauges()["swaps_total"] > 0
    assert core.policies.gauges()["host_blocks_used"] == 0


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_two_hundred_streams_a_third_cancelled_a_thousand_times(fake_card: ModelCard) -> None:
    assert run_examples(fake_card, 1000).num_preemptions > 0
