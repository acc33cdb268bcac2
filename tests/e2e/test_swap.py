"""Stages are swapped while streams are live: no request is lost, no text differs, nothing is left."""

import asyncio
import gc
import random
import resource
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from msgspec.structs import replace

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.messages import StepPlan
from pipeline.runtime.handover import knows_nothing
from pipeline.runtime.stage import Stage
from pipeline.runtime.swapped import USUAL
from pipeline.runtime.testing import CheckingRunner, FakeHandle, FakeRunner
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
    return Order(server.pipeline.running.blueprint.config.stages[name].use)


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


class Left(NamedTuple):
    """What the process holds."""

    num_stages: int
    num_threads: int
    mib: int

    @classmethod
    def now(cls) -> "Left":
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        num_stages = sum(isinstance(each, Stage) for each in gc.get_objects())
        return cls(num_stages, threading.active_count(), pages * resource.getpagesize() >> 20)


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
    prompts = [f"{number} things that are good about {thing}:" for number in range(2, 10) for thing in THINGS]
    texts: dict[int, str] = {}

    async def main() -> None:
        async with serving(model_card, toml='[device]\nplacement = "process"\n[stages.filter]\n') as server:
            async with aiohttp.ClientSession(server.url) as session:
                answers = await asyncio.gather(*(answer(session, prompt) for prompt in prompts))
            texts.update(enumerate(answers))
            patient = replace(SHORT, computing_s=3.0, boundary_s=30.0, pool_boundary_s=3.0)  # a busy machine
            swapper = Swapper(server.pipeline, rehearses=False, bounds=patient)
            async with streaming(
                server.url, 64, 24, lambda seed, _: texts[seed % len(prompts)], prompts
            ) as streams:
                await asyncio.sleep(8)
                undisturbed_s, streams.longest_gap_s = streams.longest_gap_s, 0.0
                for number in range(5 * len(STAGES)):
                    name = STAGES[number % len(STAGES)]
                    await asyncio.sleep(random.uniform(0, 0.2))
                    swapped = await swapper.swap(name, same(server, name))
                    assert swapped.ending == "swapped", (name, swapped)
            gap_s = streams.longest_gap_s
            print(f"\n{streams.num_ended} answers, longest gap {gap_s:.3f} s ({undisturbed_s:.3f} s before)")
            await server.rest()

    asyncio.run(main())


THINGS = ("rain", "bread", "queues", "the sea", "maps", "tea", "snow", "bridges")


async def answer(session: aiohttp.ClientSession, prompt: str) -> str:
    """Undisturbed."""
    body = {"prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    async with session.post("/v1/completions", json=body) as response:
        return str((await response.json())["choices"][0]["text"])
