"""Stages are swapped while streams are live: no request is lost, no text differs, nothing is left."""

import asyncio
import random
import time
from typing import Any

import pytest
from msgspec.structs import replace

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.messages import StepPlan
from pipeline.runtime.handover import knows_nothing
from pipeline.runtime.testing import CheckingRunner, FakeHandle, FakeRunner
from pipeline.swapping import Order, Swapper
from tests.e2e.swapped import fake_text, streaming
from tests.e2e.world import serving
from tests.perf.swaps_under_load import SHORT, STAGES, Left, same, swap_each


class PacedRunner(CheckingRunner):
    """Takes 2 ms a step, so that there is time between steps, and checks what every row reads."""

    def launch(self, plan: StepPlan, /) -> Any:
        time.sleep(0.002)
        return super().launch(plan)


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


def test_one_that_knows_other_things_waits_until_there_is_nothing_to_know() -> None:
    async def main() -> None:
        async with serving(byte_card(), PacedRunner, "[stages.filter]\n") as server:
            swapper = Swapper(server.pipeline, rehearses=False, bounds=SHORT)
            async with streaming(server.url, 6, 60, fake_text) as streams:
                await server.steps(5)
                calm = Order("tests.e2e.stages_to_swap:Calm")
                assert (await swapper.swap("filter", calm)).ending == "swapped"
                num_ended = streams.num_ended  # all that were live have ended, the next wait at the door
                assert num_ended >= 6
                builtin = Order("pipeline.stages.filter:Filter", drain_s=0.0)
                at_once = await swapper.swap("filter", builtin)  # for Calm never knows anything
                assert at_once.ending == "swapped"
                while knows_nothing(server.pipeline.stages["filter"][0]):  # noqa: ASYNC110 - nobody is told
                    await asyncio.sleep(0.001)
                late = await swapper.swap("filter", replace(calm, drain_s=0.0))
                assert late.reason == "requests of before were still under way after 0 s"
                while streams.num_ended < num_ended + 6:  # noqa: ASYNC110 - streams tell nobody
                    await asyncio.sleep(0.01)
            await server.rest()

    asyncio.run(main())


class SteadyRunner(FakeRunner):
    """Takes 4 ms a step."""

    def launch(self, plan: StepPlan, /) -> FakeHandle:
        time.sleep(0.004)
        return super().launch(plan)


@pytest.mark.nightly
@pytest.mark.parametrize("name", STAGES)
def test_a_hundred_swaps_under_64_streams(name: str) -> None:
    async def main() -> None:
        async with serving(byte_card(), SteadyRunner, "[stages.filter]\n") as server:
            swapper = Swapper(server.pipeline, rehearses=False, bounds=SHORT)
            assert (await swapper.swap(name, same(server, name))).ending == "swapped"
            before = Left.now()
            async with streaming(server.url, 64, 200, fake_text) as streams:
                await asyncio.sleep(5)
                undisturbed_s, streams.longest_gap_s = streams.longest_gap_s, 0.0
                for number in range(100):
                    await asyncio.sleep(random.uniform(0, 0.05))
                    swapped = await swapper.swap(name, same(server, name))
                    assert swapped.ending == "swapped", (number, swapped)
            after, gap_s = Left.now(), streams.longest_gap_s
            print(f"\n{name}: longest gap {gap_s:.3f} s ({undisturbed_s:.3f} s before), {before}, {after}")
            assert streams.num_ended >= 64 and gap_s < 0.5
            assert after.num_stages <= before.num_stages
            assert after.num_threads <= before.num_threads + 1
            await server.rest()

    asyncio.run(main())


@pytest.mark.nightly
@pytest.mark.parametrize("name", STAGES)
def test_swaps_leave_nothing(name: str) -> None:
    """Under load the journal and the clients grow too, so this is without."""

    async def main() -> None:
        async with serving(byte_card(), SteadyRunner, "[stages.filter]\n") as server:
            bounds = replace(SHORT, trial_s=0.0, max_trial_s=0.0)
            swapper = Swapper(server.pipeline, rehearses=False, bounds=bounds)
            sizes: list[Left] = []
            for number in range(201):
                assert (await swapper.swap(name, same(server, name))).ending == "swapped"
                if number % 100 == 0:
                    sizes.append(Left.now())
            _, before, after = sizes
            assert after.num_stages == before.num_stages and after.mib <= before.mib + 2, sizes
            assert after.num_threads <= before.num_threads + 1
            await server.rest()

    asyncio.run(main())


@pytest.mark.nightly
@pytest.mark.model
def test_a_real_model_says_the_same_whatever_is_swapped(model_card: ModelCard) -> None:
    """A hundred swaps of each stage: python -m tests.perf.swaps_under_load."""
    for seen in asyncio.run(swap_each(model_card, num_swaps=5)):
        assert seen.num_swaps == 5, seen
