"""Traces of real runs, loaded into Perfetto's own trace processor and asked in SQL."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pipeline.__main__ import main as stageline
from pipeline.checkpoint.card import ModelCard
from pipeline.messages import DeviceReady
from pipeline.runtime.testing import FakeRunner
from pipeline.telemetry import RequestRecord, StepRecord
from pipeline.telemetry.request_parts import decode_part
from pipeline.topology import NODES
from tests.e2e.world import Server, serving
from tests.trace_processor import LoadedTrace, loaded

NUM_REQUESTS = 12
STAGES = tuple(node.name for node in NODES)
CROWDED = DeviceReady(num_blocks=24, block_size=4, max_num_seqs=8, max_num_batched_tokens=48)
"""So few blocks that sequences are preempted."""

SLICES = """
    select slice.id, slice.parent_id, slice.depth, slice.ts, slice.dur, slice.name, thread.name as track,
           process.name as process
    from slice join thread_track on slice.track_id = thread_track.id join thread using(utid)
         join process using(upid)
"""
BAD_CHILDREN = """
    select child.name from slice as child join slice as parent on child.parent_id = parent.id
    where child.ts < parent.ts or child.ts + child.dur > parent.ts + parent.dur
"""
WRONG_SUMS = """
    select parent.name, parent.dur, sum(child.dur) as children
    from slice as parent join slice as child on child.parent_id = parent.id
    where parent.name not glob '*(live)' and child.name not in ('preempted', 'plan', 'sampled', 'applied')
    group by parent.id having sum(child.dur) != parent.dur
"""
"""Of a request, each line of its track fills the one above it."""


class Run:
    """What a run left behind: its trace, and what the journal says."""

    def __init__(self, server: Server, trace: bytes) -> None:
        journal = server.pipeline.telemetry.journal
        self.trace = trace
        self.requests: dict[int, RequestRecord] = {each.request_id: each for each in journal.requests()}
        self.steps: dict[int, StepRecord] = {each.step_id: each for each in journal.steps()}


async def ask(session: aiohttp.ClientSession, url: str, k: int) -> int:
    body = {"prompt": "Rivers. " * (1 + k % 4), "max_tokens": 16 + k, "ignore_eos": True}
    async with session.post(f"{url}/v1/completions", json=body) as response:
        await response.read()
        return response.status


async def traced(server: Server, tmp_path: Path) -> bytes:
    """The trace as a user gets it: by the command, into a file."""
    out = tmp_path / "out.json"
    command = ["trace", "--last", "1m", str(out), "--url", server.url]
    assert await asyncio.to_thread(stageline, command) == 0
    return out.read_bytes()


def run(card: ModelCard, tmp_path: Path, runner: Any, toml: str) -> Run:
    """Some requests at once, one of them rejected on its way."""

    async def main() -> Run:
        async with serving(card, runner, toml) as server, aiohttp.ClientSession() as session:
            answers = [ask(session, server.url, k) for k in range(NUM_REQUESTS)]
            assert set(await asyncio.gather(*answers)) == {200}
            too_long = {"prompt": "word " * 3000, "max_tokens": 4}
            async with session.post(f"{server.url}/v1/completions", json=too_long) as response:
                assert response.status == 400
            return Run(server, await traced(server, tmp_path))

    return asyncio.run(main())


def check(found: Run, *, has_preemptions: bool) -> None:
    with loaded(found.trace) as asked:
        assert asked.problems() == {}
        slices = asked.query(SLICES)
        assert asked.query(BAD_CHILDREN) == []
        assert asked.query(WRONG_SUMS) == []
        check_requests(slices, found)
        check_steps(asked, slices, found)
        tracks = {row["track"] for row in slices if row["process"] == "server"}
        assert {"device", *STAGES[1:]} <= tracks, "ingress handles no messages, so it has no slices"
        preempted = [row for row in slices if row["name"] == "preempted"]
        assert len(preempted) == sum(each.num_preempted for each in found.steps.values())
        assert bool(preempted) is has_preemptions


def check_requests(slices: list[dict[str, Any]], found: Run) -> None:
    """One track a request, as long as the journal says, with its first token where the journal has it."""
    rows = [row for row in slices if row["process"] == "requests"]
    whole = {row["track"]: row for row in rows if row["depth"] == 0}
    assert set(whole) == {f"request {request_id}" for request_id in found.requests}
    for request_id, record in found.requests.items():
        track = f"request {request_id}"
        assert whole[track]["dur"] == record.e2e_ns
        names = [(row["name"], row["dur"]) for row in rows if row["track"] == track and row["depth"] == 1]
        if record.finish == "rejected":
            assert names == []
        else:
            assert record.ttft_ns is not None
            decode = decode_part(record)
            assert decode is not None and min(decode.segments_ns.values()) >= 0
            decode_ns = sum(decode.segments_ns.values()) - decode.overlap_ns
            assert names == [("ttft", record.ttft_ns), ("decode", decode_ns)]


def check_steps(asked: LoadedTrace, slices: list[dict[str, Any]], found: Run) -> None:
    steps = {row["name"]: row["dur"] for row in slices if row["track"].startswith("device")}
    assert steps == {f"step {i}": max(0, s.end_ns - s.begin_ns) for i, s in found.steps.items()}
    tokens = asked.query("""
        select sum(extract_arg(arg_set_id, 'args.prefill_tokens')) as prefill,
               sum(extract_arg(arg_set_id, 'args.decode_tokens')) as decode
        from slice where name glob 'step *'
    """)
    assert tokens == [
        {
            "prefill": sum(each.num_prefill_tokens for each in found.steps.values()),
            "decode": sum(each.num_decode_tokens for each in found.steps.values()),
        }
    ]
    counters = asked.query("""
        select counter_track.name as name, count(*) as points, max(value) as most
        from counter join counter_track on counter.track_id = counter_track.id group by 1 order by 1
    """)
    assert [(row["name"], row["points"]) for row in counters] == [
        (name, len(found.steps))
        for name in (
            *("blocks used", "sequences running", "sequences waiting"),
            *("step tokens decode", "step tokens prefill"),
        )
    ]
    assert counters[0]["most"] == max(each.num_used_blocks for each in found.steps.values())


def test_a_run_with_preemptions(fake_card: ModelCard, tmp_path: Path) -> None:
    found = run(fake_card, tmp_path, lambda: FakeRunner(CROWDED), "[model]\nmax_model_len = 96")
    check(found, has_preemptions=True)


@pytest.mark.model
def test_a_run_of_the_real_model(model_card: ModelCard, tmp_path: Path) -> None:
    toml = '[device]\ndevice = "cpu"\nnum_blocks = 256\nmax_num_seqs = 4\n[model]\nmax_model_len = 512'
    check(run(model_card, tmp_path, None, toml), has_preemptions=False)


def test_a_request_that_lives_is_in_the_trace(fake_card: ModelCard, tmp_path: Path) -> None:
    async def main() -> bytes:
        async with serving(fake_card, FakeRunner) as server, aiohttp.ClientSession() as session:
            body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
            async with session.post(f"{server.url}/v1/completions", json=body) as response:
                await response.content.readany()
                return await traced(server, tmp_path)

    with loaded(asyncio.run(main())) as asked:
        assert asked.problems() == {}
        rows = [row for row in asked.query(SLICES) if row["process"] == "requests"]
        assert [(row["name"], row["dur"]) for row in rows if row["depth"] == 0] == [("request 0 (live)", -1)]
        assert [row["name"] for row in rows if row["depth"] == 1] == [
            "tokenize",
            "wait for a slot",
            "prefill",
        ]


def test_the_checks_can_fail(fake_card: ModelCard, tmp_path: Path) -> None:
    """A slice that sticks out, one cut short, and broken JSON are all found."""
    found = run(fake_card, tmp_path, FakeRunner, "[model]\nmax_model_len = 512")
    trace = json.loads(found.trace)
    decode = next(event for event in trace["traceEvents"] if event["name"] == "decode")
    decode["dur"] -= 0.001
    with loaded(json.dumps(trace).encode()) as asked:
        assert [row["name"] for row in asked.query(WRONG_SUMS)] == ["request 0"]
    decode["dur"] += 1000
    with loaded(json.dumps(trace).encode()) as asked:
        assert asked.query(BAD_CHILDREN) or asked.query(WRONG_SUMS) or asked.problems()
    with pytest.raises(AssertionError), loaded(found.trace[: len(found.trace) // 2]) as asked:
        assert asked.problems() == {}
