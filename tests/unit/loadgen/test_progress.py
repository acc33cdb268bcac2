"""The view of a run while it goes on."""

import asyncio
import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadgen.clients.connect import target
from loadgen.progress import Latencies
from loadgen.record import Record
from loadgen.replay import Options, replay
from loadgen.workload import Limits
from tests.unit.loadgen.fake_llm_server import Script, delta, done, serve


def test_each_chunk_is_looked_at_once() -> None:
    latencies, records = Latencies(), [Record(0, 1.0, 3, 4)]
    latencies.follow(records)
    assert latencies.ttft.percentile(50) is None
    records[0].chunk(1.5, 1)
    latencies.follow(records)
    latencies.follow(records)
    records.append(Record(1, 2.0, 3, 4, chunk_s=[2.1, 2.3], closed_s=2.3))
    records[0].chunk(1.7, 1)
    records[0].chunk(1.9, 1)
    latencies.follow(records)
    latencies.follow(records)
    assert latencies.ttft.count == 2 and latencies.itl.count == 3
    assert latencies.ttft.percentile(100) == pytest.approx(0.5, rel=0.02)
    assert latencies.itl.percentile(50) == pytest.approx(0.2, rel=0.02)


def test_a_look_is_short_and_skips_what_it_has_no_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.progress._MAX_GAPS", 10)
    latencies = Latencies()
    records = [Record(i, 0.0, 3, 4, chunk_s=[1.0 + 0.1 * j for j in range(8)]) for i in range(4)]
    latencies.follow(records)
    assert latencies.ttft.count + latencies.itl.count == 10
    latencies.follow(records)
    assert latencies.ttft.count + latencies.itl.count == 10


def test_a_terminal_gets_a_live_view(tmp_path: Path) -> None:
    trace = tmp_path / "prompts.jsonl"
    trace.write_text(json.dumps({"prompt": "hello", "max_tokens": 2}) + "\n")
    out = StringIO()

    def script(_: dict[str, Any]) -> Script:
        return [0.1, delta("a"), 0.2, delta("b"), 0.5, done(2, 2)]

    async def body() -> None:
        async with serve(script) as server:
            options = Options(trace, target(server.url, "ws", None, 1), Limits())
            await replay(options, Console(file=out, width=120, force_terminal=True))

    asyncio.run(body())
    for part in (
        "sent 1/1",
        "live 1",
        "req/s",
        "tok/s",
        r"TTFT p50 \d+ p99 \d+ ms",
        r"ITL p50 \d+ p99 \d+ ms",
    ):
        assert re.search(part, out.getvalue()), part
