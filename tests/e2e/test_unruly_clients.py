"""loadgen's unruly clients against the whole server: nobody may leave anything behind or harm others."""

import asyncio
from typing import Any

import pytest

from loadgen.behaviours import Behaviours, Patience, Pause, SlowReader
from loadgen.clients import connect
from loadgen.clients.connect import target
from loadgen.clock import RunClock
from loadgen.content import Contents
from loadgen.openloop import OpenLoop
from loadgen.prefixes import Prefixes, TokenRange
from loadgen.record import Record
from loadgen.traces.row import Message
from loadgen.workload import Arrivals, Job, Workload
from pipeline.checkpoint.card import ModelCard
from pipeline.messages import DeviceReady
from pipeline.runtime.testing import CheckingRunner
from tests.e2e.world import Server, serving

DEVICE = DeviceReady(num_blocks=96, block_size=4, max_num_seqs=16, max_num_batched_tokens=192)
PROTOCOLS = ["ws", "sse"]
A_TOKEN_A_CHUNK = "[stages.stream.options]\nflush_tokens = 1\n"
"""SSE does not say how many tokens a chunk has: a cancel at a token needs chunks of one."""
SEED = 7
PLANNED = Arrivals("trace", "burst", 0, 0, 0, 0.0, None, None)


async def play(server: Server, protocol: str, jobs: list[Job], behaviours: Behaviours) -> list[Record]:
    clock = RunClock()
    async with connect(target(server.url, protocol, None, 3), clock) as (client, _):
        contents = Contents(None, Prefixes(0, TokenRange()))
        run = OpenLoop(
            Workload(jobs, 0, 0, PLANNED), client, contents, clock, 20, behaviours, SEED, keeps_texts=True
        )
        await run.run()
    return sorted(run.records, key=lambda record: record.index)


def against(card: ModelCard, jobs: list[Job], protocol: str, behaviours: Behaviours) -> list[Record]:
    """The run's records; afterwards the server is idle, with every block back and no task left."""

    async def body() -> list[Record]:
        async with serving(card, lambda: CheckingRunner(DEVICE), A_TOKEN_A_CHUNK) as server:
            records = await play(server, protocol, jobs, behaviours)
            await server.rest()
            return records

    return asyncio.run(body())


def job(index: int, num_output: int = 20, **more: Any) -> Job:
    return Job(index, 0.002 * index, None, num_output, **({"content": f"request {index}"} | more))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_crowd_of_all_kinds_leaves_nothing_behind(fake_card: ModelCard, protocol: str) -> None:
    unruly = Behaviours(Patience(0.5, 1), 0.3, SlowReader(0.2, 5000), Pause(0.2, 0.05), reconnect=True)
    records = against(fake_card, [job(i) for i in range(120)], protocol, unruly)
    assert len(records) == 120
    assert [record.failure for record in records] == [None] * 120
    stayed = [record for record in records if not record.abandoned]
    cancelled = [record for record in stayed if record.ended_by == "client"]
    assert len(cancelled) > 3
    for record in cancelled:
        assert record.num_tokens_seen >= (unruly.of(record.index, 20, SEED).cancel_after or 99)
    for record in stayed:
        if unruly.of(record.index, 20, SEED).cancel_after is None:
            assert record.is_finished and record.output_tokens == len(record.text or "") == 20


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_chats_go_on_with_the_answers_they_got(fake_card: ModelCard, protocol: str) -> None:
    """A byte model: its tokens in are the bytes of the whole chat, so that usage shows what was sent."""
    turn = (Message("user", "and then?"),)
    jobs = [
        job(0, content=turn),
        job(1, content=turn, after=0, adds_turn=True),
        job(2, content=turn, after=1, adds_turn=True),
    ]
    first, second, third = against(fake_card, jobs, protocol, Behaviours())
    tokens = [record.input_tokens or 0 for record in (first, second, third)]
    assert tokens[1] - tokens[0] == tokens[2] - tokens[1] >= len("and then?") + 20
    assert second.intended_s == first.closed_s and third.intended_s == second.closed_s
