"""Stages are swapped while streams are live: no request is lost, no text differs, nothing is left."""

import asyncio
import gc
import random
import resource
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pipeline.checkpoint.fake import byte_card
from pipeline.messages import StepPlan
from pipeline.runtime.swapped import USUAL
from pipeline.runtime.testing import CheckingRunner
from pipeline.swapping import Order, Swapper
from tests.e2e.swapped import fake_text, streaming
from tests.e2e.world import Server, serving

STAGES = ("tokenize", "schedule", "execute", "sample", "detokenize", "filter", "stream")
SHORT = replace(USUAL, trial_s=0.05, trial_batches=4, max_trial_s=0.5)


class PacedRunner(CheckingRunner):
    """Takes 2 ms a step, so that there is time between steps, and checks what every row reads."""

    def launch(self, plan: StepPlan, /) -> Any:
        time.sleep(0.002)
        return super().launch(plan)


def same(server: Server, name: str) -> Order:
    """The class that runs already."""
    return Order(server.pipeline.blueprint.config.stages[name].use)


def size() -> tuple[int, int, int]:
    """What the process holds: objects, threads, MiB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(gc.get_objects()), threading.active_count(), pages * resource.getpagesize() >> 20


def test_every_stage_is_swapped_under_live_streams() -> None:
    async def main() -> None:
        async with serving(byte_card(), PacedRunner, "[stages.filter]\n") as server:
            swapper = Swapper(server.pipeline, rehearses=False, bounds=SHORT)
            before = {name: list(server.pipeline.stages[name]) for name in STAGES}
            async with streaming(server.url, 12, 60, fake_text) as streams:
                await server.steps(5)
                for name in STAGES:
                    swapped = await swapper.swap(name, same(server, name))
                    assert swapped.ending == "swapped", (name, swapped)
                    assert not set(server.pipeline.stages[name]) & set(before[name])
            assert streams.num_ended >= 12
            await server.rest()

    asyncio.run(main())


@pytest.mark.nightly
@pytest.mark.parametrize("name", STAGES)
def test_a_hundred_swaps_under_64_streams(name: str) -> None:
    async def main() -> None:
        async with serving(byte_card(), PacedRunner, "[stages.filter]\n") as server:
            swapper = Swapper(server.pipeline, rehearses=False, bounds=SHORT)
            async with streaming(server.url, 64, 200, fake_text) as streams:
                await server.steps(50)
                sizes: list[tuple[int, int, int]] = []
                for number in range(100):
                    await asyncio.sleep(random.uniform(0, 0.05))
                    swapped = await swapper.swap(name, same(server, name))
                    assert swapped.ending == "swapped", (number, swapped)
                    if number in (9, 99):
                        sizes.append(size())
            print(f"\n{name}: longest gap {streams.longest_gap_s * 1000:.0f} ms, {sizes}")
            assert streams.num_ended > 64 and streams.longest_gap_s < 0.5
            await server.rest()

    asyncio.run(main())
