"""Traces cost something per request, nothing per token: calls into their modules are counted."""

import asyncio
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp
import pytest

from pipeline import telemetry
from pipeline.checkpoint.card import ModelCard
from pipeline.core import trace_context
from pipeline.runtime.testing import FakeRunner
from tests.collector import collecting
from tests.e2e.world import serving

HOME = Path(telemetry.__file__).parent
MODULES = {
    trace_context.__file__,
    *(str(HOME / f"{name}.py") for name in ("slow_log", "span_export", "spans", "trace_sampler")),
}
ALL_ON = '[server]\nslow_request_ms = 0\n[trace]\notlp_endpoint = "{url}"'
TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def calls(card: ModelCard, num_tokens: int, headers: dict[str, str], toml: str) -> Counter[str]:
    """By function, those that one request of so many tokens makes on the loop's thread."""
    counted: Counter[str] = Counter()

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename in MODULES:
            counted[frame.f_code.co_qualname] += 1

    async def main() -> None:
        async with serving(card, FakeRunner, toml) as server, aiohttp.ClientSession() as session:
            body = {"prompt": "x", "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
            sys.setprofile(on_event)
            try:
                async with session.post(f"{server.url}/v1/completions", json=body, headers=headers) as answer:
                    assert (await answer.read()).count(b"data:") > 1
            finally:
                sys.setprofile(None)

    asyncio.run(main())
    return counted


@pytest.mark.parametrize("headers", [{}, {"traceparent": TRACEPARENT}])
def test_a_request_costs_the_same_whatever_its_length(fake_card: ModelCard, headers: dict[str, str]) -> None:
    with collecting() as collector:
        toml = ALL_ON.format(url=collector.url)
        few, many = (calls(fake_card, num_tokens, headers, toml) for num_tokens in (2, 500))
    assert few == many
    assert few["SpanExport.ended"] == few["SlowLog.ended"] == few["TraceSampler.span"] == 1
    assert few.total() < 60


def test_without_an_exporter_a_request_makes_three_calls(fake_card: ModelCard) -> None:
    assert calls(fake_card, 50, {}, "") == {
        "TraceSampler.span": 1,
        "SlowLog.ended": 1,
        "SlowLog._is_slow": 1,
    }
