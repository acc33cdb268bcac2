"""The sampler of a running server: its evidence is that of /metrics and of the journal."""

import asyncio
import gc
import time

import aiohttp
import msgspec

from pipeline.checkpoint.card import ModelCard
from pipeline.messages import DeviceReady, StepPlan
from pipeline.runtime.testing import FakeRunner
from pipeline.telemetry import Evidence
from pipeline.telemetry.process import IS_LINUX
from pipeline.topology import NODES
from tests.e2e.scraped import scrape
from tests.e2e.world import serving

DEVICE = DeviceReady(num_blocks=64, block_size=16, max_num_seqs=4, max_num_batched_tokens=256)
STEP_S = 0.002


def slow_runner() -> FakeRunner:
    def pause(_: StepPlan) -> None:
        time.sleep(STEP_S)

    return FakeRunner(DEVICE, pause)


async def ask(session: aiohttp.ClientSession, url: str, num_requests: int) -> None:
    async def one() -> None:
        body = {"prompt": "x" * 20, "max_tokens": 30, "ignore_eos": True}
        async with session.post(f"{url}/v1/completions", json=body) as response:
            assert response.status == 200

    await asyncio.gather(*(one() for _ in range(num_requests)))


def test_evidence_of_a_run_agrees_with_the_metrics(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with serving(fake_card, slow_runner) as server, aiohttp.ClientSession() as session:
            await ask(session, server.url, 8)
            page = await scrape(session, server)
            evidence = server.pipeline.sampler.evidence(60.0)
        check(evidence)
        first, last = evidence.samples[0], evidence.samples[-1]
        assert len(evidence.requests) == 8 == page.total("stageline_requests_total")
        assert len(evidence.steps) == page.total("stageline_step_rows_count")
        for old, new in zip(first.stages, last.stages, strict=True):
            assert new.sent == page.total("stageline_inbox_sent_total", stage=new.name)
            assert new.num_waited == new.sent - new.depth
            elapsed_ns = last.at_ns - first.at_ns
            assert 0 <= new.busy_ns - old.busy_ns <= new.workers * elapsed_ns
        assert last.num_live == 0
        assert msgspec.json.decode(msgspec.json.encode(evidence), type=Evidence) == evidence

    asyncio.run(main())


def check(evidence: Evidence) -> None:
    """What holds of any evidence of this server."""
    settings = evidence.settings
    assert (settings.device, settings.num_blocks, settings.max_num_seqs) == ("fake", 64, 4)
    assert (settings.credits, settings.tokenize_workers, settings.max_waiting) == (2, 2, 256)
    assert len(evidence.samples) >= 2
    assert [stage.name for stage in evidence.samples[0].stages] == [node.name for node in NODES]
    times = [sample.at_ns for sample in evidence.samples]
    assert times == sorted(times) and (times[0], times[-1]) == (evidence.begin_ns, evidence.end_ns)
    for request in evidence.requests:
        assert evidence.begin_ns <= request.arrived_ns + request.e2e_ns <= evidence.end_ns
    if IS_LINUX:
        assert set(evidence.samples[-1].thread_cpu_ns) == {"loop", "device", "tokenize"}
        assert evidence.samples[-1].rss_bytes > 1 << 20


def test_a_blocked_loop_and_a_collection_are_in_the_samples(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with serving(fake_card, slow_runner) as server:
            time.sleep(0.25)  # noqa: ASYNC251 - this is the fault
            await asyncio.sleep(0.02)
            gc.collect()
            sample = server.pipeline.sampler.sample()
            assert sample.loop_lag_ns >= 150_000_000
            assert sample.gc_pauses >= 1 and 0 < sample.gc_longest_ns <= sample.gc_pause_ns
        assert len(gc.callbacks) == num_callbacks, "the hooks go with the server"

    num_callbacks = len(gc.callbacks)
    asyncio.run(main())


def test_the_ring_fills_by_itself(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with serving(fake_card, slow_runner) as server:
            async with asyncio.timeout(10):
                while len(server.pipeline.sampler.samples()) < 2:  # noqa: ASYNC110 - a timer tells nobody
                    await asyncio.sleep(0.05)
            first, second = server.pipeline.sampler.samples()
            assert second.at_ns - first.at_ns >= 900_000_000

    asyncio.run(main())
