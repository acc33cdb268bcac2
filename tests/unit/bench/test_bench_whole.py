"""The bench of the whole server, once over each door: a real server process and real sockets."""

import asyncio
import os

import pytest

from pipeline.bench.report import whole_report
from pipeline.bench.scrape import moved, read
from pipeline.bench.whole import WholeSettings, measure
from pipeline.errors import ConfigError

CLIENTS, TOKENS = 8, 40


@pytest.mark.parametrize("protocol", ["ws", "sse"])
def test_every_token_arrives_and_every_stage_shows(protocol: str) -> None:
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    result = asyncio.run(measure(WholeSettings(CLIENTS, 0.6, TOKENS, protocol)))
    assert (result.failures, result.num_failures) == ([], 0)
    assert result.requests >= CLIENTS
    assert result.tokens >= result.requests * TOKENS / 2
    assert result.chunks <= result.tokens
    assert result.steps > 0
    assert all(busy_s > 0 for busy_s in result.busy_s.values())
    assert {link.stage for link in result.links} == set(result.busy_s) - {"device"}
    assert all(link.wakeups <= link.sends + link.posts for link in result.links)
    assert whole_report(result).renderables
    if cores is not None:
        assert os.sched_getaffinity(0) == cores


def test_one_token_a_chunk_where_the_streamer_is_told_so() -> None:
    settings = WholeSettings(2, 0.3, TOKENS, "ws", stream_options={"flush_tokens": 1})
    result = asyncio.run(measure(settings))
    assert result.num_failures == 0
    assert result.chunks == result.tokens > 0


def test_a_fault_of_the_configuration_is_told_before_anything_starts() -> None:
    settings = WholeSettings(1, 0.1, 1, "ws", stream_options={"flush_tokens": 0})
    with pytest.raises(ConfigError, match="flush_tokens"):
        asyncio.run(measure(settings))


def test_counters_are_read_by_stage() -> None:
    text = (
        "# TYPE a counter\n"
        'a_total{stage="x"} 3.0\n'
        "# TYPE b gauge\nb 2\n"
        '# TYPE c counter\nc_total{code="other"} 9\n'
    )
    before = read(text)
    assert before == {("a_total", "x"): 3.0, ("b", ""): 2.0}
    assert moved({("a_total", "x"): 1.0}, before) == {("a_total", "x"): 2.0, ("b", ""): 2.0}
