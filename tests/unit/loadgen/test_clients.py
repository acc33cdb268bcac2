"""Both clients against a scripted server over real sockets: what counts as a token, an end, a failure."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from loadgen.clients import Client, connect
from loadgen.clients.connect import target
from loadgen.clients.dial import Dialer
from loadgen.clients.sse import SseClient
from loadgen.clients.sse_events import EventSplitter
from loadgen.clock import RunClock
from loadgen.errors import ServerError, UsageError
from loadgen.record import Record
from tests.unit.loadgen.fake_llm_server import (
    DONE,
    DROP,
    FakeServer,
    Script,
    data,
    delta,
    done,
    serve,
    text,
    usage,
)

SLACK_S = 0.05
"""For a busy machine: the scripted delays that tell right from wrong differ by more."""


async def with_client(
    script: Callable[[dict[str, Any]], Script],
    protocol: str,
    use: Callable[[FakeServer, Client, RunClock], Awaitable[None]],
    num_sockets: int = 1,
) -> None:
    async with serve(script) as server:
        clock = RunClock()
        async with connect(target(server.url, protocol, None, num_sockets), clock) as (client, _):
            await use(server, client, clock)


def ask(script: Script, protocol: str, status: tuple[int, str] | None = None) -> Record:
    """The record of one request answered by `script`."""
    records = []

    async def use(server: FakeServer, client: Client, clock: RunClock) -> None:
        server.status = status
        clock.start()
        records.append(Record(0, 0.0, planned_input=3, planned_output=4))
        await client.generate("hello there", 4, records[0])

    asyncio.run(with_client(lambda _: script, protocol, use))
    return records[0]


def reason(record: Record) -> str | None:
    return None if record.failure is None else record.failure.reason


def test_sse_times_and_usage() -> None:
    script = [0.1, text("a"), 0.05, text("b"), 0.05, text("c", "length"), 0.2, usage(3, 5), DONE]
    record = ask(script, "sse")
    assert record.failure is None and record.finish_reason == "length"
    assert record.chunk_s == pytest.approx([0.1, 0.15, 0.2], abs=SLACK_S)
    assert (record.input_tokens, record.num_output) == (3, 5)
    assert record.tpot_s == pytest.approx((record.chunk_s[2] - record.chunk_s[0]) / 4)
    assert record.e2e_s == pytest.approx(0.2, abs=SLACK_S)  # the late usage frame does not extend it


def test_websocket_times_and_usage() -> None:
    script = [0.1, delta("a"), 0.04, delta("b"), 0.04, delta("cde", 3), 0.2, done(3, 5)]
    record = ask(script, "ws")
    assert record.failure is None and record.finish_reason == "length"
    assert record.chunk_s == pytest.approx([0.1, 0.14, 0.18], abs=SLACK_S)
    assert record.chunk_tokens == [1, 1, 3] and record.num_output == 5
    assert record.itl_s == pytest.approx([0.04, 0.04], abs=0.03)


ROLE = data({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
EMPTY = data({"choices": [{"index": 0, "text": "", "finish_reason": None}], "usage": None})


@pytest.mark.parametrize(
    "noise", [ROLE, EMPTY, b": ping\n\n", data({"choices": []}), usage(3, 0), b"event: ping\n\n"]
)
def test_sse_frames_without_text_are_no_tokens(noise: bytes) -> None:
    record = ask(
        [noise, 0.1, text("Hi"), 0.02, noise, text("", "length"), 0.1, noise, usage(3, 1), DONE], "sse"
    )
    assert record.failure is None and record.num_output == 1
    assert record.chunk_s == pytest.approx([0.1], abs=SLACK_S)


@pytest.mark.parametrize("noise", [delta("", 0), {"type": "ping"}, {"type": "accepted"}])
def test_websocket_frames_without_tokens_are_no_tokens(noise: dict[str, Any]) -> None:
    record = ask([noise, 0.1, delta("Hi"), noise, 0.1, done(3, 1)], "ws")
    assert record.failure is None and record.chunk_s == pytest.approx([0.1], abs=SLACK_S)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_a_reasoning_frame_is_the_first_token_but_not_the_answer(field: str) -> None:
    thought = data({"choices": [{"index": 0, "delta": {field: "hmm"}}]})
    answer = data({"choices": [{"index": 0, "delta": {"content": "42"}, "finish_reason": "stop"}]})
    record = ask([0.05, thought, 0.15, answer, usage(3, 2), DONE], "sse")
    assert record.ttft_s == pytest.approx(0.05, abs=SLACK_S)
    assert record.answer_s == pytest.approx(0.2, abs=SLACK_S)


def test_tokens_whose_text_is_held_back_count_when_they_come() -> None:
    record = ask([delta("", 1), 0.1, delta("ď", 1), done(3, 2)], "ws")
    assert record.ttft_s == pytest.approx(0.0, abs=SLACK_S)
    assert record.answer_s == pytest.approx(0.1, abs=SLACK_S)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ([text("a"), text("b", "length"), usage(3, 2)], "unterminated"),
        ([text("a"), usage(3, 1), DONE], "unterminated"),
        ([], "unterminated"),
        ([text("a"), 0.01, DROP], "disconnected"),
        ([text("a"), data({"error": {"message": "device lost"}}), DONE], "error_event"),
        ([text("a"), data("{not json"), DONE], "bad_frame"),
        ([text("a", "cancelled"), usage(3, 1), DONE], "finish_cancelled"),
        ([text("", "length"), usage(3, 0), DONE], "empty"),
    ],
)
def test_sse_answers_that_are_not_whole_are_failures(script: Script, why: str) -> None:
    assert reason(ask(script, "sse")) == why


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ([delta("a"), DROP], "disconnected"),
        ([{"type": "error", "error": {"message": "too long", "code": "context_length_exceeded"}}],
         "error_context_length_exceeded"),
        ([{"type": "error", "error": {"message": "no code"}}], "error_frame"),
        ([{"type": "error", "id": None, "error": {"message": "not for one request"}}], "error_frame"),
        ([{"type": "delta", "text": 5}], "disconnected"),
        ([delta("a"), done(3, 1, "error")], "finish_error"),
        ([done(3, 0)], "empty"),
    ],
)  # fmt: skip
def test_websocket_answers_that_are_not_whole_are_failures(script: Script, why: str) -> None:
    assert reason(ask(script, "ws")) == why


def test_a_refusal_keeps_the_servers_words() -> None:
    record = ask([], "sse", status=(429, "the queue is full"))
    assert record.failure is not None
    assert (record.failure.reason, record.failure.message) == ("http_429", "the queue is full")


def test_what_is_asked_for_forces_the_length() -> None:
    async def use(server: FakeServer, client: Client, clock: RunClock) -> None:
        await client.generate("once upon", 17, Record(0, 0.0, 2, 17))
        asked = server.requests[0]
        wanted = {
            "prompt": "once upon",
            "max_tokens": 17,
            "ignore_eos": True,
            "temperature": 0,
            "model": "fake",
        }
        assert wanted.items() <= asked.items()

    asyncio.run(with_client(lambda _: [text("a", "length"), DONE], "sse", use))
    asyncio.run(with_client(lambda _: [delta("a"), done(2, 1)], "ws", use))


def test_requests_share_sockets_and_keep_apart() -> None:
    def script(frame: dict[str, Any]) -> Script:
        count = frame["max_tokens"]
        return [step for i in range(count) for step in (0.001 * (i % 3), delta("x"))] + [done(1, count)]

    async def use(server: FakeServer, client: Client, clock: RunClock) -> None:
        records = [Record(i, 0.0, 1, i + 1) for i in range(20)]
        async with asyncio.TaskGroup() as group:
            for record in records:
                group.create_task(client.generate("p", record.planned_output, record))
        assert [record.num_tokens_seen for record in records] == list(range(1, 21))
        assert server.num_sockets == 3

    asyncio.run(with_client(script, "ws", use, num_sockets=3))


def test_a_broken_socket_fails_its_requests_and_is_replaced() -> None:
    def script(frame: dict[str, Any]) -> Script:
        return [0.02, DROP] if frame["prompt"] == "drop" else [0.05, delta("x"), done(1, 1)]

    async def use(server: FakeServer, client: Client, clock: RunClock) -> None:
        records = [Record(i, 0.0, 1, 1) for i in range(3)]
        await asyncio.gather(client.generate("drop", 1, records[0]), client.generate("stay", 1, records[1]))
        await client.generate("stay", 1, records[2])
        assert [reason(record) for record in records] == ["disconnected", "disconnected", None]
        assert server.num_sockets == 2

    asyncio.run(with_client(script, "ws", use))


def test_a_cancelled_websocket_request_tells_the_server() -> None:
    async def use(server: FakeServer, client: Client, clock: RunClock) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.generate("p", 1, Record(0, 0.0, 1, 1))
        record = Record(1, 0.0, 1, 1)
        server.script = lambda _: [delta("x"), done(1, 1)]
        await client.generate("p", 1, record)  # the socket lives on
        assert record.failure is None and server.cancelled == [server.requests[0]["id"]]

    asyncio.run(with_client(lambda _: [0.1], "ws", use))


def test_events_are_whole_however_the_bytes_are_cut() -> None:
    stream = (
        b': ping\n\ndata: {"a":1}\r\n\r\nevent: x\nid: 3\ndata:two\ndata: lines\n\ndata: [DONE]\n\ndata: cut'
    )
    for size in range(1, len(stream) + 1):
        splitter = EventSplitter()
        pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
        assert [event for piece in pieces for event in splitter.feed(piece)] == [
            b'{"a":1}',
            b"two\nlines",
            b"[DONE]",
        ]


@pytest.mark.parametrize(
    ("url", "root", "protocol"),
    [
        ("http://h:1", "http://h:1", "sse"),
        ("h:1/", "http://h:1", "sse"),
        ("https://h/v1/", "https://h", "sse"),
        ("ws://h:1/v1/stream", "http://h:1", "ws"),
        ("wss://h/base/v1", "https://h/base", "ws"),
    ],
)
def test_urls(url: str, root: str, protocol: str) -> None:
    found = target(url, None, None, 1)
    assert (found.url, found.protocol) == (root, protocol)


@pytest.mark.parametrize("url", ["ftp://h", "http://", ""])
def test_wrong_urls_are_usage_errors(url: str) -> None:
    with pytest.raises(UsageError, match="--url"):
        target(url, None, None, 1)


async def connected(url: str, model: str | None, protocol: str = "sse") -> str | None:
    async with connect(target(url, protocol, model, 1), RunClock()) as (_, name):
        return name


def test_an_unreachable_server_is_told_plainly() -> None:
    with pytest.raises(ServerError, match=r"cannot reach http://127\.0\.0\.1:9: .*is the server running"):
        asyncio.run(connected("http://127.0.0.1:9", None))


def test_the_model_is_found_and_another_is_refused() -> None:
    async def main() -> None:
        async with serve(lambda _: []) as server:
            assert await connected(server.url, None) == await connected(server.url, "fake") == "fake"
            with pytest.raises(ServerError, match=r"no model 'llama'; --model can be: fake"):
                await connected(server.url, "llama")
            server.models.append("other")
            assert await connected(server.url, "other") == "other"
            with pytest.raises(ServerError, match="several models"):
                await connected(server.url, None)

    asyncio.run(main())


async def _read_request(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    assert found is not None
    await reader.readexactly(int(found[1]))


async def after_an_answer(second: bytes) -> tuple[list[str | None], int]:
    """Two requests, one after the other, of a server that keeps a connection after the first on it and sends
    `second` before it closes it at the next. How they failed; the number of connections.
    """
    content = text("x", "length") + usage(1, 1) + DONE
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(content)}\r\n\r\n"
    served: list[asyncio.Task[None]] = []

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.append(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await _read_request(reader)
            writer.write(head.encode() + content)
            await _read_request(reader)
            writer.write(second)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    clock = RunClock()
    dialer = Dialer(f"http://127.0.0.1:{port}")
    client = SseClient(dialer, "fake", clock)
    clock.start()
    records = [Record(i, 0.0, 1, 1) for i in range(2)]
    for record in records:
        await client.generate("hello", 1, record)
    client.close()
    await asyncio.gather(*served)
    server.close()
    return [reason(record) for record in records], len(served)


def test_a_connection_closed_after_its_last_answer_is_replaced() -> None:
    assert asyncio.run(after_an_answer(b"")) == ([None, None], 2)


def test_one_closed_in_the_middle_of_an_answer_is_a_failure() -> None:
    assert asyncio.run(after_an_answer(b"HTTP/1.1 200 OK\r\n")) == ([None, "disconnected"], 1)
