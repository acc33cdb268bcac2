"""Traces as their users see them: traceparent over the wire, spans at a collector, lines in the log."""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from pipeline import assemble
from pipeline import config as configuration
from pipeline.checkpoint.card import ModelCard
from pipeline.core.trace_context import parse_traceparent
from pipeline.errors import ConfigError
from pipeline.messages import SEGMENTS, DeviceReady
from pipeline.runtime.testing import FakeRunner
from tests.collector import attributes, collecting
from tests.e2e.world import Server, serving

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = f"00-{TRACE}-{SPAN}-01"
BODY = {"prompt": "Once", "max_tokens": 8, "ignore_eos": True, "temperature": 0}
SMALL_DEVICE = DeviceReady(num_blocks=12, block_size=4, max_num_seqs=8, max_num_batched_tokens=64)


async def post(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], traceparent: str | None = None
) -> tuple[int, str | None]:
    """Status and traceparent of the answer, which is read to its end."""
    headers = {"traceparent": traceparent} if traceparent else {}
    async with session.post(f"{url}/v1/completions", json=body, headers=headers) as response:
        await response.read()
        return response.status, response.headers.get("traceparent")


async def frames(ws: aiohttp.ClientWebSocketResponse, frame: dict[str, Any]) -> list[dict[str, Any]]:
    """Send a frame; what comes back, up to the ending."""
    await ws.send_json(frame)
    found = [await ws.receive_json()]
    while found[-1]["type"] not in ("done", "error"):
        found.append(await ws.receive_json())
    return found


def run(card: ModelCard, body: Callable[[Server, aiohttp.ClientSession], Any], toml: str = "") -> None:
    async def main() -> None:
        runner = FakeRunner
        async with serving(card, runner, toml) as server, aiohttp.ClientSession() as session:
            await body(server, session)

    asyncio.run(main())


# traceparent ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_http_answers_with_the_requests_own_span(fake_card: ModelCard, stream: bool) -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        status, answered = await post(session, server.url, BODY | {"stream": stream}, CALLER)
        own = parse_traceparent(answered or "")
        assert status == 200 and own is not None
        assert (own.trace_id, own.flags) == (TRACE, 1) and own.span_id != SPAN
        (record,) = server.pipeline.telemetry.journal.requests()
        assert (record.trace_parent, record.parent_span_id) == (answered, SPAN)

    run(fake_card, body)


@pytest.mark.parametrize("traceparent", [None, f"00-{TRACE}-{'0' * 16}-01", CALLER.upper(), "x"])
def test_without_a_valid_traceparent_there_is_no_trace(fake_card: ModelCard, traceparent: str) -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        assert await post(session, server.url, BODY, traceparent) == (200, None)
        (record,) = server.pipeline.telemetry.journal.requests()
        assert record.trace_parent == record.parent_span_id == ""

    run(fake_card, body)


def test_two_traceparents_are_as_none(fake_card: ModelCard) -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        headers = [("traceparent", CALLER), ("traceparent", CALLER)]
        async with session.post(f"{server.url}/v1/completions", json=BODY, headers=headers) as response:
            assert response.status == 200
            assert "traceparent" not in response.headers

    run(fake_card, body)


def test_a_request_rejected_on_its_way_has_its_span_too(fake_card: ModelCard) -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        for stream in (False, True):
            too_long = BODY | {"prompt": "x" * 5000, "stream": stream}
            status, answered = await post(session, server.url, too_long, CALLER)
            assert status == 400 and (answered or "").startswith(f"00-{TRACE}-")
            assert server.pipeline.telemetry.journal.requests()[-1].trace_parent == answered

    run(fake_card, body, "[model]\nmax_model_len = 512")


def test_a_websocket_frame_has_a_traceparent_of_its_own(fake_card: ModelCard) -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(f"{server.url}/v1/stream") as ws:
            generate = BODY | {"type": "generate", "id": "a"}
            accepted = (await frames(ws, generate | {"traceparent": CALLER}))[0]
            assert accepted["traceparent"].startswith(f"00-{TRACE}-")
            assert (await frames(ws, generate))[0] == {"type": "accepted", "id": "a"}
            assert (await frames(ws, generate | {"traceparent": "x"}))[0] == {"type": "accepted", "id": "a"}
            (refused,) = await frames(ws, generate | {"traceparent": 7})
            assert refused["error"]["param"] == "traceparent"

    run(fake_card, body)


def test_the_handshakes_traceparent_is_for_frames_without_one(fake_card: ModelCard) -> None:
    other = CALLER.replace("4bf9", "aaaa")

    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(f"{server.url}/v1/stream", headers={"traceparent": CALLER}) as ws:
            generate = BODY | {"type": "generate", "id": "a"}
            first, second = (await frames(ws, generate))[0], (await frames(ws, generate))[0]
            assert first["traceparent"].startswith(f"00-{TRACE}-")
            assert first["traceparent"] != second["traceparent"]
            third = (await frames(ws, generate | {"traceparent": other}))[0]
            assert third["traceparent"].startswith("00-aaaa")

    run(fake_card, body)


# Spans at a collector ---------------------------------------------------------------------------


def test_a_collector_gets_the_spans_of_every_request_when_the_server_has_drained(
    fake_card: ModelCard,
) -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        status, own = await post(session, server.url, BODY)
        assert status == 200
        owns.append(own)
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        async with session.post(f"{server.url}/v1/chat/completions", json=chat) as response:
            assert response.status == 200
            owns.append(response.headers["traceparent"])
        assert await post(session, server.url, BODY, CALLER[:-1] + "0") != (200, None)  # not sampled

    owns: list[str | None] = []
    with collecting() as collector:
        run(fake_card, body, f'[trace]\notlp_endpoint = "{collector.url}"')
    roots = [span for span in collector.spans if span.name.split()[0] in ("chat", "text_completion")]
    assert [f"00-{span.trace_id.hex()}-{span.span_id.hex()}-03" for span in roots] == owns
    told = attributes(roots[0])
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (4, 8)
    assert told["gen_ai.response.finish_reasons"] == ["length"]
    for root in roots:
        children = [span for span in collector.spans if span.parent_span_id == root.span_id]
        edges = [root.start_time_unix_nano, *(child.end_time_unix_nano for child in children)]
        assert edges == [*(child.start_time_unix_nano for child in children), root.end_time_unix_nano]
        assert [child.name for child in children][-2:] == ["stream", "decode"]


def test_preemptions_are_events(fake_card: ModelCard) -> None:
    async def main() -> None:
        toml = f'[trace]\notlp_endpoint = "{collector.url}"'
        runner = lambda: FakeRunner(SMALL_DEVICE)  # noqa: E731
        async with serving(fake_card, runner, toml) as server, aiohttp.ClientSession() as session:
            asked = BODY | {"prompt": "y" * 12, "max_tokens": 24}
            answers = await asyncio.gather(*(post(session, server.url, asked) for _ in range(6)))
            assert {status for status, _ in answers} == {200}
            records = server.pipeline.telemetry.journal.requests()
            assert [len(record.preempted_ns) for record in records] == [r.num_preemptions for r in records]
            num_preempted.append(server.scheduler.num_preemptions)

    num_preempted: list[int] = []
    with collecting() as collector:
        asyncio.run(main())
    events = [(span, event) for span in collector.spans for event in span.events]
    preempted = [(span, event) for span, event in events if event.name == "preempted"]
    assert len(preempted) == num_preempted[0] > 0
    assert len([1 for _, event in events if event.name == "first_token"]) == 6
    for span, event in events:
        assert span.start_time_unix_nano <= event.time_unix_nano <= span.end_time_unix_nano


def test_a_share_of_the_requests_is_sampled(fake_card: ModelCard) -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        assert await post(session, server.url, BODY) == (200, None)
        assert (await post(session, server.url, BODY, CALLER))[1] is not None

    with collecting() as collector:
        run(fake_card, body, f'[trace]\notlp_endpoint = "{collector.url}"\notlp_sample_ratio = 0')
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}


@pytest.mark.parametrize("fault", ["hangs", "refuses", "is not there"])
def test_a_collector_that_fails_disturbs_nobody(
    fake_card: ModelCard, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests go on at their speed, and the drain does not take long."""
    monkeypatch.setattr("pipeline.telemetry.otlp.TIMEOUT_S", 0.5)

    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        await post(session, server.url, BODY)
        if fault != "is not there":
            assert await asyncio.to_thread(collector.has_request.wait, 10)
        for _ in range(20):
            assert (await post(session, server.url, BODY))[0] == 200
        async with session.get(f"{server.url}/metrics") as response:
            assert "stageline_traces_exported_total 0.0" in await response.text()
        drained_from.append(time.monotonic())

    drained_from: list[float] = []
    with collecting() as collector, capture_logs() as lines:
        collector.status = 400
        if fault == "hangs":
            collector.go_on.clear()
        url = "http://127.0.0.1:9" if fault == "is not there" else collector.url
        run(fake_card, body, f'[trace]\notlp_endpoint = "{url}"')
        assert time.monotonic() - drained_from[0] < 8
    assert [line["event"] for line in lines if line["log_level"] != "info"].count("span_export_fails") == 1
    assert not collector.requests


def test_without_the_extra_the_command_that_brings_it_is_named(
    fake_card: ModelCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "pipeline.telemetry.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    config = configuration.loads('[trace]\notlp_endpoint = "http://127.0.0.1:4318"', "my.toml")
    with pytest.raises(ConfigError, match=r"my.toml: trace.otlp_endpoint: .*pip install 'stageline\[otlp\]'"):
        assemble.check(config)


def test_an_endpoint_must_be_a_url() -> None:
    with pytest.raises(ConfigError, match="must be a URL that begins with http"):
        configuration.loads('[trace]\notlp_endpoint = "collector:4317"', "my.toml")


# The slow-request log ---------------------------------------------------------------------------


def test_a_slow_request_is_one_line_with_its_segments(fake_card: ModelCard) -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        await post(session, server.url, BODY | {"prompt": "secret words"}, CALLER)
        async with session.get(f"{server.url}/metrics") as response:
            assert "stageline_slow_requests_total 1.0" in await response.text()

    with capture_logs() as lines:
        run(fake_card, body, "[server]\nslow_request_ms = 0")
    (line,) = (line for line in lines if line["event"] == "slow_request")
    assert set(line["segments_ms"]) == set(SEGMENTS)
    assert sum(line["segments_ms"].values()) == pytest.approx(line["e2e_ms"], abs=0.02)
    assert sum(line["ttft_segments_ms"].values()) == pytest.approx(line["ttft_ms"], abs=0.02)
    assert (line["trace_id"], line["output_tokens"], line["finish"]) == (TRACE, 8, "length")
    assert "secret" not in str(line)


def test_a_quick_request_makes_no_line(fake_card: ModelCard) -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        await post(session, server.url, BODY)

    with capture_logs() as lines:
        run(fake_card, body)
    assert "slow_request" not in [line["event"] for line in lines]
