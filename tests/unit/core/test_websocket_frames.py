"""What a client's frames may say, and how a request's frames are numbered, kept and counted."""

import json
from typing import Any

import pytest

from pipeline.core.credit import Credit
from pipeline.core.reasoning import ReasoningTags
from pipeline.core.wire import (
    Answered,
    Limits,
    Replay,
    Resumption,
    Wanted,
    check_bare,
    hello_frame,
    parse_ack,
    parse_frame,
    parse_grant,
    parse_resume,
    wanted_of,
)
from pipeline.errors import RequestError
from pipeline.messages import Completion, FinishReason, SamplingParams, Timings

LIMITS = Limits("m", 1000, 300)
DONE = Completion(FinishReason.STOP, 3, 2, Timings((), 0, None))


def frame(**fields: Any) -> Any:
    return parse_frame(json.dumps({"type": "x", "id": "a", **fields}))


def refusal(call: Any, *args: Any) -> RequestError:
    with pytest.raises(RequestError) as refused:
        call(*args)
    return refused.value


def test_frames_of_a_client() -> None:
    check_bare(frame())
    assert parse_grant(frame(tokens=7)) == 7
    assert parse_ack(frame(index=0)) == 0
    assert parse_resume(frame(session="s", index=3)) == Resumption("s", 3)


@pytest.mark.parametrize(
    ("parse", "fields", "param"),
    [
        (check_bare, {"reason": "x"}, "reason"),
        (parse_grant, {}, "tokens"),
        (parse_grant, {"tokens": 0}, "tokens"),
        (parse_grant, {"tokens": True}, "tokens"),
        (parse_grant, {"tokens": 1 << 40}, "tokens"),
        (parse_grant, {"tokens": 1, "more": 1}, "more"),
        (parse_ack, {"index": -1}, "index"),
        (parse_ack, {"index": 1.5}, "index"),
        (parse_ack, {}, "index"),
        (parse_resume, {"index": 1}, "session"),
        (parse_resume, {"index": 1, "session": "x" * 65}, "session"),
        (parse_resume, {"session": "x"}, "index"),
        (parse_resume, {"index": 1, "session": 3}, "session"),
    ],
)
def test_frames_that_are_refused(parse: Any, fields: dict[str, Any], param: str) -> None:
    error = refusal(parse, frame(**fields))
    assert (error.status, error.param) == (400, param)


def test_a_session_is_never_shown() -> None:
    assert "secret" not in refusal(parse_resume, frame(session="secret" * 20, index=0)).message


def test_hello() -> None:
    assert json.loads(hello_frame("s", "m", {"resume_s": 10.0})) == {
        "type": "hello",
        "version": 1,
        "session": "s",
        "model": "m",
        "limits": {"resume_s": 10.0},
    }


def asked(**fields: Any) -> Wanted:
    return wanted_of({"prompt": "x", **fields}, LIMITS, 1)


def test_how_a_stream_is_steered() -> None:
    plain = asked()
    assert (plain.credits, plain.is_resumable, plain.flush_tokens, plain.flush_ms) == (None, False, 0, 0.0)
    steered = asked(credits=5, resumable=True, flush_tokens=64, flush_ms=250)
    assert (steered.credits, steered.is_resumable) == (5, True)
    assert (steered.flush_tokens, steered.flush_ms) == (64, 250.0)
    for fields in (
        {"credits": 0},
        {"resumable": 1},
        {"flush_tokens": 0},
        {"flush_ms": 2000},
        {"flush_ms": -1},
        {"n": 2},
    ):
        (name,) = fields
        assert refusal(lambda given: asked(**given), fields).param == name


def test_reasoning_comes_apart_in_one_frame() -> None:
    tags = ReasoningTags()
    chat = wanted_of({"messages": [{"role": "user", "content": "x"}]}, Limits("m", 9, 9, reasoning=tags), 1)
    assert chat.reasoning == tags and chat.sampling.unstopped == ("<think>", "</think>", False)
    frames = Answered("a", chat)
    texts = ["<thi", "nk>\nWhy", " not?</thin", "k>\n\nBe", "cause."]
    got = [json.loads(frames.delta(text, 2)) for text in texts]
    assert "".join(each.get("reasoning", "") for each in got) == "Why not?"
    assert "".join(each["text"] for each in got) == "Because."
    assert got[0] == {"type": "delta", "id": "a", "text": "", "tokens": 2}
    assert frames.rest() == b""
    silent = Answered("a", chat)
    assert json.loads(silent.delta("<th", 1))["text"] == ""
    assert json.loads(silent.rest(4)) == {"type": "delta", "id": "a", "index": 4, "text": "<th", "tokens": 0}


def test_indices() -> None:
    frames = Answered("a", Wanted("p", None, SamplingParams()))
    assert frames.delta("x", 3, (), 7) == b'{"type":"delta","id":"a","index":7,"text":"x","tokens":3}'
    assert json.loads(frames.done(DONE, 8))["index"] == 8
    assert json.loads(frames.error(RequestError("no"), 9))["index"] == 9
    assert "index" not in json.loads(frames.done(DONE))
    assert json.loads(frames.resumed(2)) == {"type": "resumed", "id": "a", "index": 2}


def test_a_replay_keeps_what_is_not_acknowledged() -> None:
    replay = Replay()
    assert (replay.next_index, replay.is_empty, replay.after(0)) == (1, True, [])
    for text in (b"one", b"two", b"three"):
        replay.keep(text)
    assert (replay.next_index, replay.num_bytes) == (4, 11)
    replay.acknowledge(1)
    replay.acknowledge(0)
    assert (replay.next_index, replay.num_bytes) == (4, 8)
    assert replay.after(2) == [b"three"] and replay.after(2) == [b"three"]
    assert "at least 2" in refusal(replay.after, 1).message
    assert "at most 3" in refusal(replay.after, 4).message
    assert "at most 3" in refusal(replay.acknowledge, 4).message
    replay.acknowledge(3)
    assert (replay.is_empty, replay.num_bytes, replay.next_index) == (True, 0, 4)


def test_credit() -> None:
    credit = Credit(2)
    assert credit.take("a", 1) == ("a", 1) and not credit.is_spent
    assert credit.take("b", 1) == ("b", 1) and credit.is_spent
    assert credit.take("", 0) == ("", 0) and not credit.has_held
    assert credit.take("c", 1) == ("", 0) and credit.take("d", 3) == ("", 0)
    assert (credit.num_held, credit.has_held) == (4, True)
    assert credit.grant(2) == ("cd", 4), "a piece goes as a whole, and the credit is overdrawn"
    assert credit.left == -2 and credit.is_spent
    assert credit.take("e", 1) == ("", 0)
    assert credit.grant(2) == ("", 0) and credit.grant(1) == ("e", 1)
    assert credit.take("", 0) == ("", 0) and not credit.has_held
    credit.take("f", 1)
    assert credit.discard() == 1 and not credit.has_held
