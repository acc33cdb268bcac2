"""The step cycle is taken over under live streams: a device in a process, and other scheduling options."""

import asyncio
from typing import Any

from msgspec.structs import replace

from pipeline.checkpoint.fake import byte_card
from pipeline.runtime.swapped import USUAL
from pipeline.swapping import Order, Swapper
from tests.e2e.swapped import fake_text, streaming
from tests.e2e.world import serving
from tests.fake_process import Script, factory

EXECUTE, SCHEDULE = "pipeline.stages.execute:Execute", "pipeline.stages.schedule:Schedule"
OTHERS: list[dict[str, Any]] = [
    {"policy": "fair", "credits": 3},
    {"policy": "sjf", "credits": 1, "max_waiting": 4},
    {"policy": "deadline", "itl_target_ms": 50.0},
    {"policy": "priority", "max_wait_ms": 0.0},
]
SCRIPT = Script(step_s=0.002)


def test_a_device_in_a_process_and_other_policies_under_live_streams() -> None:
    async def main() -> None:
        runner = factory(replace(SCRIPT, capacity=replace(SCRIPT.capacity, max_num_seqs=4)))
        async with serving(byte_card(), runner=runner) as server:
            swapper = Swapper(server.pipeline, rehearses=False, bounds=replace(USUAL, trial_s=0.05))
            pid = server.pipeline.stages["execute"][0]._device.pid  # type: ignore[attr-defined]
            assert pid
            async with streaming(server.url, 10, 40, fake_text) as streams:
                for options in OTHERS:
                    for order in (Order(EXECUTE), Order(SCHEDULE, options)):
                        await server.steps(5)
                        name = order.use.rpartition(":")[0].rpartition(".")[2]
                        swapped = await swapper.swap(name, order)
                        assert swapped.ending == "swapped", swapped
                refused = await swapper.swap("schedule", Order(SCHEDULE, {"separation": "split"}))
                assert refused.ending == "refused" and "separation" in refused.reason
                scheduler = server.pipeline.stages["schedule"][0]
                assert scheduler.options.policy == "priority"
                await server.steps(5)
            assert streams.num_ended >= 10
            assert server.pipeline.stages["execute"][0]._device.pid == pid  # type: ignore[attr-defined]
            await server.rest()

    asyncio.run(main())
