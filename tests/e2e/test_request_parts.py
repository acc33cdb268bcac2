"""What is told of a request's time is true of every life: crowded out, preempted, cancelled, served."""

import asyncio
import random

import aiohttp
import pytest

from pipeline.checkpoint.card import ModelCard
from pipeline.messages import DeviceReady
from pipeline.runtime.testing import FakeRunner
from pipeline.telemetry import RequestRecord
from pipeline.telemetry.request_parts import decode_part, stage_parts
from tests.e2e.world import serving

NUM_REQUESTS = 60
CROWDED = DeviceReady(num_blocks=40, block_size=4, max_num_seqs=12, max_num_batched_tokens=48)


async def live(session: aiohttp.ClientSession, url: str, chance: random.Random) -> None:
    """One request, of a client that may leave at any moment."""
    asked = {"prompt": "z" * chance.randint(1, 60), "max_tokens": chance.randint(1, 60)}
    leaves_after = chance.choice([None, None, 0, 1, 3])
    await asyncio.sleep(chance.random() * 0.1)
    body = asked | {"ignore_eos": True, "stream": True}
    async with session.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 200
        num_lines = 0
        while num_lines != leaves_after and await response.content.readline():
            num_lines += 1


def check(record: RequestRecord) -> None:
    parts, decode = stage_parts(record), decode_part(record)
    edges = [record.arrived_ns, *(part.end_ns for part in parts)]
    assert edges[:-1] == [part.begin_ns for part in parts]
    assert min(min(part.wait_ns, part.service_ns) for part in parts) >= 0, record
    assert len(record.preempted_ns) == record.num_preemptions, record
    end_ns = record.arrived_ns + record.e2e_ns
    if decode is None:
        assert edges[-1] == end_ns
    else:
        assert (edges[-1], end_ns) == (decode.begin_ns, decode.end_ns)
        assert min(decode.segments_ns.values()) >= 0, record
        assert sum(decode.segments_ns.values()) - decode.overlap_ns == decode.end_ns - decode.begin_ns


@pytest.mark.parametrize("seed", range(4))
def test_parts_add_up(fake_card: ModelCard, seed: int) -> None:
    async def main() -> list[RequestRecord]:
        chance = random.Random(seed)
        toml = "[model]\nmax_model_len = 150"
        async with serving(fake_card, lambda: FakeRunner(CROWDED), toml) as server:
            async with aiohttp.ClientSession() as session:
                await asyncio.gather(*(live(session, server.url, chance) for _ in range(NUM_REQUESTS)))
            await server.rest()
            return server.pipeline.telemetry.journal.requests()

    records = asyncio.run(main())
    assert len(records) == NUM_REQUESTS
    for record in records:
        check(record)
    assert {record.finish for record in records} == {"length", "cancelled"}
    assert any(record.num_preemptions for record in records)
