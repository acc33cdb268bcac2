"""Rows that follow answers, against a server: chats that grow, think times, failures, users."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loadgen.behaviours import Behaviours, Patience
from loadgen.clients import connect
from loadgen.clients.connect import target
from loadgen.clock import RunClock
from loadgen.content import Contents
from loadgen.openloop import OpenLoop
from loadgen.prefixes import Prefixes, TokenRange
from loadgen.record import Record
from loadgen.timing import Closed, Scale
from loadgen.traces.row import NS_PER_S, Message, Trace, TraceRow
from loadgen.workload import Limits, Pacing, plan
from tests.unit.loadgen.fake_llm_server import DONE, FakeServer, Script, data, delta, done, serve, text, usage

PROTOCOLS = ["sse", "ws"]
SLACK_S = 0.1
"""For a busy machine."""


def row(at_s: float = 0.0, after: int | None = None, think_s: float | None = None, **more: Any) -> TraceRow:
    content = more.pop("content", f"row {at_s}")
    return TraceRow(round(at_s * NS_PER_S), None, 3, content, after=after, think_s=think_s, **more)


def chat(role: str, words: str) -> tuple[Message, ...]:
    return (Message(role, words),)


async def play(
    server: FakeServer, protocol: str, rows: list[TraceRow], pacing: Pacing | None = None, **more: Any
) -> list[Record]:
    """The records, in order of sending."""
    workload = plan(Trace(Path("t"), "test", "", rows, [], [], True), Limits(), pacing)
    clock = RunClock()
    async with connect(target(server.url, protocol, "fake", 2), clock) as (client, _):
        run = OpenLoop(workload, client, Contents(None, Prefixes(0, TokenRange())), clock, 10, **more)
        await run.run()
    assert not run.live
    return run.records


def said(protocol: str, wait_s: float, *words: str) -> Script:
    if protocol == "ws":
        return [wait_s, *map(delta, words), done(1, len(words))]
    return [wait_s, *map(text, words), text("", "length"), usage(1, len(words)), DONE]


def run(
    script: Any, protocol: str, rows: list[TraceRow], pacing: Pacing | None = None, **more: Any
) -> tuple[list[Record], FakeServer]:
    async def body() -> tuple[list[Record], FakeServer]:
        async with serve(script) as server:
            return await play(server, protocol, rows, pacing, **more), server

    return asyncio.run(body())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_follower_waits_for_the_answer_and_the_think_time(protocol: str) -> None:
    """0 ends at 0.2. 1 was recorded at 0.05 and thinks 0.1: 0.3. 2 was recorded later than that: 0.5."""
    rows = [row(), row(0.05, 0, 0.1), row(0.5, 1, 0.1)]
    records, _ = run(lambda _: said(protocol, 0.2, "a"), protocol, rows)
    ends = [record.closed_s or 0.0 for record in records]
    assert [record.intended_s for record in records] == [0, ends[0] + 0.1, max(0.5, ends[1] + 0.1)]
    assert ends[0] > 0.2 and ends[1] > 0.5
    assert all(record.lateness_s is not None and record.lateness_s < SLACK_S for record in records)
    assert records[1].ttft_s == pytest.approx(0.2, abs=SLACK_S)  # from its intended time, not the recorded


def test_a_follower_is_not_sent_before_its_recorded_time() -> None:
    records, _ = run(lambda _: said("ws", 0, "a"), "ws", [row(), row(0.3, 0, 0.0)])
    assert records[1].intended_s == pytest.approx(0.3)
    records, _ = run(lambda _: said("ws", 0, "a"), "ws", [row(), row(0.3, 0)], Pacing(Closed()))
    assert records[1].intended_s < 0.1  # closed: the answer alone decides


def test_think_times_are_not_scaled() -> None:
    records, _ = run(lambda _: said("ws", 0, "a"), "ws", [row(), row(0.1, 0, 0.2)], Pacing(Scale(100)))
    assert records[1].intended_s == (records[0].closed_s or 0.0) + 0.2


def test_the_clock_goes_on_while_sessions_wait() -> None:
    rows = [row(), row(0.05, 0), row(0.1), row(0.15)]
    records, _ = run(lambda _: said("ws", 0.3, "a"), "ws", rows)
    assert [record.index for record in records] == [0, 2, 3, 1]
    assert [record.intended_s for record in records] == [0, 0.1, 0.15, records[0].closed_s]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_chat_grows_by_what_was_answered(protocol: str) -> None:
    first = (Message("system", "be brief"), Message("user", "one?"))
    rows = [
        row(content=first),
        row(after=0, content=chat("user", "two?"), adds_turn=True),
        row(after=1, content=chat("user", "three?"), adds_turn=True),
    ]
    answers = iter(["A", "B", "C"])
    records, server = run(lambda _: said(protocol, 0, next(answers), "!"), protocol, rows)
    sent = [[(m["role"], m["content"]) for m in request["messages"]] for request in server.requests]
    so_far = [("system", "be brief"), ("user", "one?")]
    assert sent[0] == so_far
    assert sent[1] == [*so_far, ("assistant", "A!"), ("user", "two?")]
    assert sent[2] == [*sent[1], ("assistant", "B!"), ("user", "three?")]
    assert all(record.is_finished for record in records)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_follows_a_failure_is_counted_and_never_sent(protocol: str) -> None:
    failing = data({"error": {"message": "lost"}})
    error = {"type": "error", "error": {"message": "lost", "code": "server_error"}}
    rows = [
        row(content=chat("user", "a")),
        row(5, 0, 9.0, content=chat("user", "b"), adds_turn=True),
        row(9, 1),
    ]
    records, server = run(lambda _: [failing, DONE] if protocol == "sse" else [error], protocol, rows)
    assert len(server.requests) == 1
    assert [record.index for record in records] == [0, 1, 2]
    reasons = [record.failure.reason for record in records if record.failure is not None]
    assert reasons[1:] == ["predecessor_failed"] * 2
    assert [record.sent_s is None for record in records] == [False, True, True]
    assert all(record.closed_s is not None and record.closed_s < 1 for record in records)


def test_who_loses_patience_takes_the_rest_of_the_session_along() -> None:
    records, server = run(
        lambda _: said("ws", 0.5, "a"),
        "ws",
        [row(), row(0, 0), row(0, 1)],
        behaviours=Behaviours(Patience(0.1, 0)),
    )
    assert len(server.requests) == 1
    assert [record.abandoned for record in records] == [True] * 3
    assert [record.failure for record in records] == [None] * 3


def test_a_cancelled_answer_is_followed_as_far_as_it_came() -> None:
    rows = [row(content=chat("user", "a")), row(0, 0, content=chat("user", "b"), adds_turn=True)]
    script = [step for word in "xyz" for step in (delta(word), 0.05)] + [done(1, 3)]
    _, server = run(lambda _: script, "ws", rows, behaviours=Behaviours(cancel=1))
    part = server.requests[1]["messages"][1]
    assert part["role"] == "assistant" and "xyz".startswith(part["content"]) and 1 <= len(part["content"]) < 3


def test_users_send_when_their_last_answer_has_ended() -> None:
    """Two users, rows recorded at once; row 2 stalls, so that the other user takes all the rest."""
    waits = {"row 2.0": 0.5}
    live, most = [0], [0]

    def script(frame: dict[str, Any]) -> Script:
        live[0] += 1
        most[0] = max(most[0], live[0])
        return said("ws", waits.get(frame["prompt"], 0.1), "a")

    async def body() -> list[Record]:
        async with serve(script) as server:
            answered = server._answer

            async def counted(*args: Any) -> None:
                await answered(*args)
                live[0] -= 1

            server._answer = counted  # type: ignore[method-assign]
            return await play(server, "ws", [row(float(i)) for i in range(7)], Pacing(Closed(2)))

    records = asyncio.run(body())
    assert most == [2]
    intended = {record.index: record.intended_s for record in records}
    assert [intended[i] for i in range(7)] == pytest.approx([0, 0, 0.1, 0.1, 0.2, 0.3, 0.4], abs=SLACK_S)
    ends = [record.closed_s for record in records]
    assert all(intended[i] in ends for i in range(2, 7))  # the moment itself at which an answer ended
