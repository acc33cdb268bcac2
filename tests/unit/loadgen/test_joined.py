"""The server's own timings: asked of this project's server alone, and joined to what the client saw."""

import asyncio
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadgen.clients.connect import target
from loadgen.joined import LATE, REMAINDER, breakdowns, says_timings
from loadgen.queues import read_sample
from loadgen.record import Record, ServerTimings
from loadgen.replay import Options, replay
from loadgen.workload import Limits
from tests.unit.loadgen.fake_llm_server import DONE, Script, data, delta, done, num_tokens, serve, text

TIMINGS = {
    "e2e_ms": 30.0,
    "ttft_ms": 10.0,
    "segments_ms": {"ingress.service": 1.0, "schedule.wait": 9.0, "execute.service": 20.0},
}
METRICS = """\
# HELP stageline_inbox_depth Inbox: depth
# TYPE stageline_inbox_depth gauge
stageline_inbox_depth{stage="tokenize"} 3.0
stageline_inbox_depth{stage="schedule"} 0.0
stageline_inbox_bound{stage="tokenize"} 64.0
stageline_requests_running 4.0
stageline_requests_waiting 17.0
stageline_requests_total{finish_reason="stop"} 5.0
"""


def sse(body: dict[str, Any]) -> Script:
    last = {"choices": [], "usage": {"prompt_tokens": num_tokens(body["prompt"]), "completion_tokens": 1}}
    more = {"timings": TIMINGS} if "timings" in body else {}
    return [0.04, text("a", "length"), data(last | more), DONE]


def ws(body: dict[str, Any]) -> Script:
    more = {"timings": TIMINGS} if "timings" in body else {}
    return [0.04, delta("a"), done(num_tokens(body["prompt"]), 1) | more]


async def run(
    folder: Path, protocol: str, about: dict[str, Any] | None
) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """What was asked, result.json, and what was printed."""
    trace = folder / "prompts.jsonl"
    trace.write_text(json.dumps({"prompt": "hello there", "max_tokens": 1}) + "\n")
    out = StringIO()
    async with serve(sse if protocol == "sse" else ws) as server:
        server.about, server.metrics = about, METRICS
        options = Options(trace, target(server.url, protocol, None, 1), Limits(), json=folder / "r.json")
        assert await replay(options, Console(file=out, width=150)) == 0
        return server.requests, json.loads((folder / "r.json").read_text()), out.getvalue()


@pytest.mark.parametrize("protocol", ["sse", "ws"])
def test_our_server_is_asked_and_its_answer_joined(tmp_path: Path, protocol: str) -> None:
    asked, result, out = asyncio.run(run(tmp_path, protocol, {"name": "stageline"}))
    assert asked[0]["timings"] is True
    assert result["requests"][0]["server_timings"] == TIMINGS
    assert result["queues"][0]["waiting"] == 17.0
    for part in ("where the time went", "schedule.wait", "9.0", "network + client", "execute.service"):
        assert part in out


@pytest.mark.parametrize("about", [None, {"name": "other"}, {}])
@pytest.mark.parametrize("protocol", ["sse", "ws"])
def test_no_other_server_is_asked_or_sampled(
    tmp_path: Path, protocol: str, about: dict[str, Any] | None
) -> None:
    asked, result, out = asyncio.run(run(tmp_path, protocol, about))
    assert "timings" not in asked[0] and result["queues"] == []
    assert result["requests"][0]["server_timings"] is None and "where the time went" not in out


def test_a_server_that_cannot_be_reached_says_no_timings() -> None:
    assert asyncio.run(says_timings("http://127.0.0.1:9")) is False


def joined(index: int, e2e_s: float, late_s: float = 0.0) -> Record:
    """A request whose server part is 30 ms."""
    record = Record(index, 1.0, 3, 1, sent_s=1.0 + late_s)
    record.chunk(1.0 + e2e_s, 1)
    record.server_timings = ServerTimings(30.0, 10.0, dict(TIMINGS["segments_ms"]))  # type: ignore[call-overload]
    return record


def test_parts_add_up_to_what_the_client_saw() -> None:
    records = [joined(i, 0.040 + 0.001 * i, late_s=0.002) for i in range(101)]
    mean, median, tail = breakdowns(records)
    assert mean.title == "mean of 101" and mean.e2e_ms == pytest.approx(90)
    assert median.title == "p50: request 50" and tail.title == "p99: request 99"
    assert tail.e2e_ms == pytest.approx(139)
    assert list(tail.parts_ms) == [
        LATE,
        "ingress.service",
        "schedule.wait",
        "execute.service",
        REMAINDER,
    ]
    assert tail.parts_ms[LATE] == pytest.approx(2) and tail.parts_ms[REMAINDER] == pytest.approx(107)
    assert sum(tail.parts_ms.values()) == pytest.approx(tail.e2e_ms)


def test_only_finished_requests_are_joined() -> None:
    failed, left = joined(0, 0.1), joined(1, 0.1)
    failed.fail("http_500", "no")
    left.ended_by = "client"
    assert breakdowns([failed, left, Record(2, 0.0, 1, 1)]) == []


def test_queue_depths_are_read_from_the_metrics_page() -> None:
    sample = read_sample(METRICS, 2.5)
    assert (sample.at_s, sample.waiting, sample.running) == (2.5, 17.0, 4.0)
    assert sample.inboxes == {"tokenize": 3.0, "schedule": 0.0}
    assert read_sample("vllm:num_requests_waiting 3\n", 0.0).inboxes == {}
