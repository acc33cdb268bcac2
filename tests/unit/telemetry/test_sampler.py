"""The sampler: one sample a second, and evidence of a window of them."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from pipeline.messages import DeviceReady
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import Service
from pipeline.runtime.testing import ManualClock
from pipeline.telemetry import Evidence, RequestRecord, Sampler, Settings, Telemetry
from pipeline.telemetry.sampler import NUM_SAMPLES, busy_shares

S = 1_000_000_000
DEVICE = DeviceReady(num_blocks=8, block_size=4, max_num_seqs=2, max_num_batched_tokens=64)


def settings(device: DeviceReady) -> Settings:
    return Settings("fake", 2, device.num_blocks, device.block_size, 2, 64, 2, 1, 8, 16)


class World:
    """A sampler over one stage, with a clock set by hand; its timer is called by hand too."""

    def __init__(self) -> None:
        self.clock = ManualClock(100 * S)
        self.telemetry = Telemetry()
        self.inbox: Inbox[int] = Inbox(4, self.clock)
        self.services = [Service(), Service()]
        self.telemetry.watch_stage("tokenize", self.inbox, self.services)
        self.sampler = Sampler(self.telemetry, settings, self.clock)

    def tick(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.clock.advance(S)
            timer = self.sampler._timer
            assert timer is not None
            timer.cancel()
            self.sampler._tick()

    def end(self, request_id: int) -> None:
        """A request that arrived half a second ago ends now."""
        self.telemetry.journal.request(
            RequestRecord(
                request_id=request_id,
                arrived_ns=self.clock() - S // 2,
                e2e_ns=S // 2,
                finish="rejected",
                code="x",
                num_prompt_tokens=0,
                num_output_tokens=0,
                num_preemptions=0,
                ttft_ns=None,
                segments_ns=(),
                ttft_segments_ns=(),
                paused_ns=0,
                trace_parent="",
            )
        )


def ids(records: Sequence[RequestRecord]) -> list[int]:
    return [record.request_id for record in records]


def test_evidence_is_the_window_that_was_asked_for_and_at_most_a_second_more() -> None:
    async def main() -> None:
        world = World()
        world.telemetry.opened(DEVICE)
        await world.sampler.start()
        for second in range(20):
            world.tick()
            world.end(second)
        world.clock.advance(S // 4)
        evidence = world.sampler.evidence(5.0)
        assert evidence.end_ns == world.clock() == evidence.samples[-1].at_ns
        assert evidence.begin_ns == evidence.samples[0].at_ns == world.clock() - 5 * S - S // 4
        assert len(evidence.samples) == 7
        assert ids(evidence.requests) == [14, 15, 16, 17, 18, 19]
        assert evidence.settings == settings(DEVICE)
        whole = world.sampler.evidence(3600.0)
        assert whole.begin_ns == 100 * S and len(whole.samples) == 22
        await world.sampler.stop()
        await world.sampler.stop()

    asyncio.run(main())


def test_evidence_goes_through_a_file_unchanged() -> None:
    async def main() -> None:
        world = World()
        world.telemetry.opened(DEVICE)
        await world.sampler.start()
        world.end(1)
        evidence = world.sampler.evidence(1.0)
        assert msgspec.json.decode(msgspec.json.encode(evidence), type=Evidence) == evidence
        await world.sampler.stop()

    asyncio.run(main())


def test_there_is_no_evidence_before_the_pipeline_is_ready() -> None:
    async def main() -> None:
        world = World()
        with pytest.raises(RuntimeError, match="ready"):
            world.sampler.evidence(1.0)
        await world.sampler.start()
        with pytest.raises(RuntimeError, match="ready"):
            world.sampler.evidence(1.0)
        await world.sampler.stop()

    asyncio.run(main())


def test_the_ring_keeps_ten_minutes() -> None:
    async def main() -> None:
        world = World()
        await world.sampler.start()
        world.tick(NUM_SAMPLES + 5)
        samples = world.sampler.samples()
        assert len(samples) == NUM_SAMPLES
        assert (
            samples[-1].at_ns == world.clock() and samples[0].at_ns == world.clock() - (NUM_SAMPLES - 1) * S
        )
        await world.sampler.stop()

    asyncio.run(main())


def test_the_longest_lag_belongs_to_one_sample_of_the_ring_whoever_else_looks() -> None:
    async def main() -> None:
        world = World()
        await world.sampler.start()
        world.sampler.vitals.loop.longest_ns = 7
        assert world.sampler.sample().loop_lag_ns == 7
        world.tick(2)
        assert [sample.loop_lag_ns for sample in world.sampler.samples()] == [0, 7, 0]
        await world.sampler.stop()

    asyncio.run(main())


def test_a_sample_has_the_state_of_inbox_and_workers() -> None:
    async def main() -> None:
        world = World()
        for message in range(3):
            assert world.inbox.offer(message)
        world.clock.advance(5)
        await world.inbox.recv_many(limit=1)
        world.services[0].begin(world.clock())
        world.clock.advance(10)
        world.services[0].end(world.clock(), 1)
        world.services[1].begin(world.clock())
        world.clock.advance(20)
        (stage,) = world.sampler.sample().stages
        assert (stage.name, stage.workers, stage.depth, stage.bound) == ("tokenize", 2, 2, 4)
        assert (stage.sent, stage.peak_depth, stage.num_waited, stage.waited_ns) == (3, 3, 1, 5)
        assert (stage.num_batches, stage.num_messages, stage.busy_ns) == (1, 1, 30)

    asyncio.run(main())


def test_busy_share_is_of_all_workers() -> None:
    world = World()
    before = world.sampler.sample()
    world.services[0].begin(world.clock())
    world.clock.advance(S)
    world.services[0].end(world.clock(), 1)
    world.clock.advance(S)
    assert busy_shares(before, world.sampler.sample()) == {"tokenize": 0.25}
    assert busy_shares(before, before) == {"tokenize": 0.0}
