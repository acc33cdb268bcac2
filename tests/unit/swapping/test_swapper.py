"""What a swap may not depend on: who waits for it, and whether the server is ready."""

import asyncio

import pytest
from msgspec.structs import replace

from pipeline import assemble
from pipeline import config as configuration
from pipeline.checkpoint.fake import byte_card
from pipeline.errors import ConfigError, SwapRefused
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.swapped import USUAL
from pipeline.runtime.testing import FakeRunner
from pipeline.swapping import Order, Swapper
from tests.e2e.world import serving

SAMPLE = Order("pipeline.stages.sample:Sample")
STREAM = "pipeline.stages.stream:Stream"
AT_ONCE = replace(USUAL, trial_s=0.05, max_trial_s=0.05)


def test_before_the_server_is_ready() -> None:
    async def main() -> None:
        blueprint = assemble.check(configuration.loads("", "test.toml"))
        swapper = Swapper(assemble.build(blueprint, byte_card(), RunnerFactory(FakeRunner)))
        assert (await swapper.swap("sample", SAMPLE)).reason == "the server is not ready yet"
        with pytest.raises(SwapRefused, match="not ready"):
            await swapper.shadow("sample", SAMPLE, 1)
        with pytest.raises(ConfigError, match="there is no stage 'simple'"):
            await swapper.swap("simple", SAMPLE)

    asyncio.run(main())


def test_whoever_waits_may_go_and_the_swap_is_told_of() -> None:
    async def main() -> None:
        async with serving(byte_card(), FakeRunner) as server:
            swapper = Swapper(server.pipeline, rehearses=False, bounds=AT_ONCE)
            waiting = asyncio.create_task(swapper.swap("stream", Order(STREAM, {"flush_ms": 5})))
            await asyncio.sleep(0)
            waiting.cancel()
            second = await swapper.swap("sample", SAMPLE)
            assert second.reason == "another swap is under way"
            async with asyncio.timeout(5):
                while server.pipeline.stages["stream"][0].options.flush_ms != 5:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                while b'stage="stream",ending="swapped"} 1.0' not in server.pipeline.telemetry.render():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            sample, swap = server.pipeline.telemetry.journal.swaps()
            assert (sample.stage, sample.ending, sample.reason, sample.paused_ns) == (
                "sample",
                "refused",
                "another swap is under way",
                0,
            )
            assert (swap.stage, swap.was, swap.now, swap.ending, swap.reason) == (
                "stream",
                STREAM,
                STREAM,
                "swapped",
                "",
            )
            assert swap.paused_ns > 0 and sample.at_ns < swap.at_ns
            (stream,) = [each for each in swapper.stages() if each.name == "stream"]
            assert stream.options == {"flush_ms": 5}
            await swapper.swap("stream", Order(STREAM, {"flush_tokens": 3}))
            (stream,) = [each for each in swapper.stages() if each.name == "stream"]
            assert stream.options == {"flush_ms": 5, "flush_tokens": 3}  # the others stay

    asyncio.run(main())


def test_a_device_half_is_not_changed() -> None:
    async def main() -> None:
        async with serving(byte_card(), FakeRunner) as server:
            swapper = Swapper(server.pipeline, rehearses=False, bounds=AT_ONCE)
            swapped = await swapper.swap("sample", Order("examples.min_p.stage:MinPSample"))
            assert "its device half is examples.min_p.min_p:MinPSampling" in swapped.reason
            assert "restart to change it" in swapped.reason

    asyncio.run(main())
