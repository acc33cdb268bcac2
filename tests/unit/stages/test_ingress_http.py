"""The HTTP door over real sockets, with an engine played by hand."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from pipeline.errors import RequestError
from pipeline.messages import ClientSink, FinishReason
from pipeline.runtime.trace import Point
from tests.unit.stages.ingress_world import MODEL, World, completion, events, on_both_loops, until, world

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
STREAM = {"prompt": "Hi", "stream": True}
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 0},
}


@asynccontextmanager
async def begun(w: World, body: Any = STREAM) -> AsyncIterator[tuple[aiohttp.ClientResponse, ClientSink]]:
    """A stream whose first piece, "zero", has arrived: the response and its sink."""
    posting = asyncio.ensure_future(w.post("/v1/completions", body).__aenter__())
    _, sink = await w.engine.next()
    sink.delta("zero", 1)
    async with await posting as response:
        assert response.status == 200
        await response.content.readuntil(b"\n\n")
        yield response, sink


def chunks(got: list[str]) -> list[Any]:
    assert got[-1] == "[DONE]"
    return [msgspec.json.decode(event) for event in got[:-1]]


@on_both_loops
async def test_completion_whole() -> None:
    async with world() as w:
        async with asyncio.TaskGroup() as group:
            answering = group.create_task(w.engine.answer())
            body = {"prompt": "Hi", "max_tokens": 5, "seed": 7}
            async with w.post("/v1/completions", body) as response:
                assert (response.status, response.content_type) == (200, "application/json")
                answer = await response.json()
        request = answering.result()
        assert (request.prompt, request.chat, request.request_id) == ("Hi", None, 0)
        assert (request.sampling.max_tokens, request.sampling.seed) == (5, 7)
        assert 0 < request.arrived_ns <= request.sent_ns
        assert answer.pop("id").startswith("cmpl-")
        assert answer.pop("created") > 1_700_000_000
        assert answer == {
            "object": "text_completion",
            "model": MODEL,
            "choices": [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}],
            "usage": USAGE,
        }
        assert [(p[1], p[3]) for p in w.trace.points()] == [(Point.ARRIVED, 0)]
        assert w.engine.num_cancels() == 0


@on_both_loops
async def test_chat_whole() -> None:
    async with world() as w, asyncio.TaskGroup() as group:
        group.create_task(w.engine.answer(ending=completion(FinishReason.LENGTH)))
        async with w.post("/v1/chat/completions", {**CHAT, "timings": True}) as response:
            answer = await response.json()
        assert answer["choices"][0]["message"]["content"] == "Hello"
        assert answer["choices"][0]["finish_reason"] == "length"
        assert sum(answer["timings"]["segments_ms"].values()) == pytest.approx(answer["timings"]["e2e_ms"])


@on_both_loops
async def test_stream_arrives_piece_by_piece() -> None:
    async with world() as w, begun(w) as (response, sink):
        assert response.headers["X-Accel-Buffering"] == "no"
        assert response.headers["Cache-Control"] == "no-cache"
        for text in ("one", "two"):
            sink.delta(text, 1)
            event = (await response.content.readuntil(b"\n\n")).decode().removeprefix("data: ")
            assert msgspec.json.decode(event)["choices"][0]["text"] == text
        sink.done(completion())
        got = chunks(await events(response))
        assert got[-1]["choices"][0]["finish_reason"] == "stop"
        assert not any("usage" in chunk for chunk in got)


@on_both_loops
async def test_chat_stream_and_the_connection_is_used_again() -> None:
    async with world() as w:
        for include_usage in (False, True):
            body = {**CHAT, "stream": True, "stream_options": {"include_usage": include_usage}}
            async with asyncio.TaskGroup() as group:
                group.create_task(w.engine.answer())
                async with w.post("/v1/chat/completions", body) as response:
                    got = chunks(await events(response))
            finished = got[:-1] if include_usage else got
            assert [chunk["choices"][0]["delta"] for chunk in finished] == [
                {"role": "assistant", "content": ""},
                {"content": "Hel"},
                {"content": "lo"},
                {},
            ]
            assert got[-1].get("usage") == (USAGE if include_usage else None)
        assert len(w.client.connector._acquired) == 0
        assert sum(map(len, w.client.connector._conns.values())) == 1


@on_both_loops
async def test_a_refused_stream_has_a_real_status() -> None:
    async with world() as w:
        posting = asyncio.ensure_future(w.post("/v1/completions", STREAM).__aenter__())
        _, sink = await w.engine.next()
        sink.error(RequestError("too long: 9 > 8", param="prompt", code="context_length_exceeded"))
        error = await w.error(await posting, 400, "context_length_exceeded")
        assert error["message"] == "too long: 9 > 8"
        assert w.engine.num_cancels() == 0


@on_both_loops
async def test_an_error_after_the_first_byte_is_an_event() -> None:
    async with world() as w, begun(w) as (response, sink):
        sink.error(RequestError("it broke", status=500, code="server_error"))
        (event,) = chunks(await events(response))
        assert event["error"]["message"] == "it broke"


@on_both_loops
async def test_an_error_row_is_an_error() -> None:
    async with world() as w:
        posting = asyncio.ensure_future(w.post("/v1/completions", {"prompt": "Hi"}).__aenter__())
        _, sink = await w.engine.next()
        sink.delta("half", 1)
        sink.done(completion(FinishReason.ERROR))
        await w.error(await posting, 500, "server_error")


@on_both_loops
async def test_a_slow_start_gets_headers_and_pings() -> None:
    async with world(ping_interval_s=0.1) as w:
        posting = asyncio.ensure_future(w.post("/v1/completions", STREAM).__aenter__())
        _, sink = await w.engine.next()
        async with asyncio.timeout(1), await posting as response:
            for _ in range(2):
                assert await response.content.readuntil(b"\n\n") == b": ping\n\n"
            sink.delta("a", 1)
            sink.done(completion())
            got = [event for event in await events(response) if event != ": ping"]
            assert [chunk["choices"][0]["text"] for chunk in chunks(got)] == ["a", ""]


@on_both_loops
async def test_pings_only_in_silence_and_as_the_operator_wants() -> None:
    async with world(ping_interval_s=0.2) as w, begun(w) as (response, sink):
        for _ in range(6):
            await asyncio.sleep(0.08)
            sink.delta("a", 1)
        sink.done(completion())
        assert ": ping" not in await events(response)
    async with world(ping_interval_s=0.1, ping="chunk") as w, begun(w) as (response, sink):
        event = (await response.content.readuntil(b"\n\n")).decode().removeprefix("data: ")
        assert msgspec.json.decode(event)["choices"][0]["text"] == ""
        sink.done(completion())
    async with world(ping_interval_s=0.05, ping="off") as w, begun(w) as (response, sink):
        await asyncio.sleep(0.3)
        sink.done(completion())
        assert len(chunks(await events(response))) == 1


@pytest.mark.parametrize("body", [STREAM, {"prompt": "Hi"}], ids=["stream", "whole"])
@pytest.mark.parametrize("has_begun", [False, True])
def test_a_client_that_leaves_is_cancelled(body: dict[str, Any], has_begun: bool) -> None:
    async def main() -> None:
        async with world() as w:
            posting = asyncio.ensure_future(w.post("/v1/completions", body).__aenter__())
            request, sink = await w.engine.next()
            if has_begun:
                sink.delta("a", 1)
                await asyncio.sleep(0.05)
            if posting.done():
                posting.result().close()
            posting.cancel()
            async with asyncio.timeout(1):
                cancel = await w.engine.cancelled()
            assert (cancel.request_id, cancel.reason) == (request.request_id, FinishReason.CANCELLED)
            sink.delta("late", 1)
            assert w.stage.num_live == 1
            sink.done(completion(FinishReason.CANCELLED))
            assert w.stage.num_live == 0
            await asyncio.sleep(0.01)
            assert w.engine.num_cancels() == 0

    asyncio.run(main())


@on_both_loops
async def test_a_full_queue_refuses_and_ids_have_no_holes() -> None:
    async with world(queue_bound=1, retry_after_s=3) as w:
        first = asyncio.ensure_future(w.post("/v1/completions", {"prompt": "1"}).__aenter__())
        await until(lambda: w.stage.num_live == 1)
        for body in ({"prompt": "2"}, {"prompt": "2", "stream": True}):
            error = await w.error(w.post("/v1/completions", body), 429, "queue_full")
            assert (error["type"], error["headers"]["Retry-After"]) == ("overloaded_error", "3")
        assert b'stageline_refused_total{code="queue_full"} 2.0' in w.telemetry.render()
        assert (await w.engine.answer()).request_id == 0
        (await first).close()
        async with asyncio.TaskGroup() as group:
            answering = group.create_task(w.engine.answer())
            async with w.post("/v1/completions", {"prompt": "3"}):
                pass
        assert answering.result().request_id == 1


@on_both_loops
async def test_live_requests_are_bounded() -> None:
    async with world(max_live_requests=1) as w:
        first = asyncio.ensure_future(w.post("/v1/completions", {"prompt": "1"}).__aenter__())
        await until(lambda: w.stage.num_live == 1)
        await w.error(w.post("/v1/completions", {"prompt": "2"}), 429, "too_many_requests")
        await w.engine.answer()
        (await first).close()


@on_both_loops
async def test_seeds_are_fresh_unless_given() -> None:
    async with world() as w:
        seeds = []
        for _ in range(3):
            async with asyncio.TaskGroup() as group:
                answering = group.create_task(w.engine.answer())
                async with w.post("/v1/completions", {"prompt": "same"}):
                    pass
            seeds.append(answering.result().sampling.seed)
        assert len(set(seeds)) == 3


@on_both_loops
async def test_bad_requests() -> None:
    async with world(max_body_bytes=2048) as w:
        url = w.url("/v1/completions")
        await w.error(w.client.post(url, data=b"{nope"), 400, "invalid_json")
        await w.error(w.client.post(url), 400, "invalid_json")
        await w.error(w.post("/v1/completions", {"prompt": ""}), 400, "empty_prompt")
        await w.error(w.post("/v1/completions", {"prompt": "a", "top_p": 2}), 400, "invalid_value")
        await w.error(w.post("/v1/completions", {"prompt": "a", "model": "b"}), 404, "model_not_found")
        await w.error(w.post("/v1/completions", {"prompt": "a" * 3000}), 413, "body_too_large")
        await w.error(w.client.post(url, data=_pieces()), 413, "body_too_large")
        gzip = {"Content-Encoding": "gzip"}
        await w.error(w.client.post(url, data=b"x", headers=gzip), 415, "unsupported_encoding")
        await w.error(w.get("/nowhere"), 404, "not_found")
        error = await w.error(w.get("/v1/completions"), 405, "method_not_allowed")
        assert error["headers"]["Allow"] == "POST"
        await w.error(w.get("/v1/stream"), 426, "upgrade_required")
        assert w.stage.num_live == 0 and w.engine.requests.stats().sent == 0


async def _pieces() -> Any:
    for _ in range(5):
        yield b"x" * 1000


@on_both_loops
async def test_any_content_type_will_do() -> None:
    async with world() as w, asyncio.TaskGroup() as group:
        group.create_task(w.engine.answer())
        headers = {"Content-Type": "text/plain"}
        async with w.client.post(
            w.url("/v1/completions"), data=b'{"prompt":"a"}', headers=headers
        ) as response:
            assert response.status == 200


@on_both_loops
async def test_terms_and_tenant_reach_the_pipeline() -> None:
    async with world() as w:
        for headers in ({"Authorization": "Bearer s3cret"}, {}):
            asked = {"prompt": "x", "priority": 3, "patience_ms": 500, "user": "ann"}
            response = asyncio.create_task(w.post("/v1/completions", asked, headers=headers).__aenter__())
            terms = (await w.engine.answer()).terms
            (await response).release()
            assert (terms.priority, terms.patience_ms) == (3, 500.0)
            assert terms.tenant.startswith("key-" if headers else "user-")
            assert "s3cret" not in terms.tenant


@on_both_loops
async def test_a_refusal_says_when_to_come_back() -> None:
    async with world(retry_after_s=2) as w:
        for said, expected in ((None, "2"), (1, "2"), (7, "7")):
            error = RequestError("later", status=429, code="wait", retry_after_s=said)
            response = asyncio.create_task(w.post("/v1/completions", {"prompt": "x"}).__aenter__())
            _, sink = await w.engine.next()
            sink.error(error)
            async with await response as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (429, expected)
