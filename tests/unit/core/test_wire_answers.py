"""The bytes that leave: OpenAI's shapes, and the websocket's frames."""

from typing import Any

import msgspec
import pytest

from pipeline.core.reasoning import ReasoningTags
from pipeline.core.wire import (
    SERVER_ERROR,
    Answered,
    AnswerShape,
    ChatAnswer,
    CompletionAnswer,
    Result,
    Wanted,
    error_event,
    error_frame,
    error_object,
)
from pipeline.errors import RequestError
from pipeline.messages import SEGMENTS, Completion, FinishReason, SamplingParams, Timings

TEXTS = ['say "x"\n', "\u20ac\U0001f600", "\u2028</script>\\", "", "\x00\x1b"]
SEGMENTS_NS = tuple(range(123_456, 123_456 + len(SEGMENTS)))
FIRST_NS = (*(94_966,) * 12, 94_975)
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 4},
}


def ended(reason: FinishReason = FinishReason.STOP, ttft_ns: int | None = 1_234_567) -> Completion:
    first_ns = FIRST_NS if ttft_ns else ()
    return Completion(reason, 7, 3, Timings(SEGMENTS_NS, sum(SEGMENTS_NS), ttft_ns, first_ns), 4)


def wanted(count: int = 1, **more: Any) -> list[Wanted]:
    return [Wanted("p", None, SamplingParams(), num_alike=count, **more)] * count


def chunks(stream: bytes) -> list[Any]:
    """Decode an SSE stream that must end in [DONE]."""
    assert stream.endswith(b"data: [DONE]\n\n")
    parts = stream.decode().removesuffix("data: [DONE]\n\n").split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") and "\n" not in part for part in parts)
    return [msgspec.json.decode(part.removeprefix("data: ")) for part in parts]


def stream(answer: AnswerShape, texts: list[str], completion: Completion) -> list[Any]:
    (choice,) = answer.choices
    said = b"".join(choice.delta(text) for text in texts) + choice.finish(completion)
    return chunks(said + answer.end([completion]))


def whole(answer: AnswerShape, *texts: str, completion: Completion | None = None) -> Any:
    return msgspec.json.decode(answer.whole([Result(text, completion or ended()) for text in texts]))


def test_completion_stream_in_full() -> None:
    shape = CompletionAnswer("1", 99, 'm"', wanted())
    head = {"id": "cmpl-1", "object": "text_completion", "created": 99, "model": 'm"'}

    def choice(text: str, reason: str | None) -> list[Any]:
        return [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}]

    assert stream(shape, TEXTS, ended(FinishReason.LENGTH)) == [
        *({**head, "choices": choice(text, None)} for text in TEXTS),
        {**head, "choices": choice("", "length")},
    ]


def test_chat_stream_in_full() -> None:
    shape = ChatAnswer("1", 99, "m", wanted())
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 99, "model": "m"}

    def choice(delta: dict[str, str], reason: str | None) -> list[Any]:
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]

    assert stream(shape, TEXTS, ended()) == [
        {**head, "choices": choice({"role": "assistant", "content": ""}, None)},
        *({**head, "choices": choice({"content": text}, None)} for text in TEXTS),
        {**head, "choices": choice({}, "stop")},
    ]


def test_a_chat_stream_without_text_still_has_its_role() -> None:
    got = stream(ChatAnswer("1", 99, "m", wanted()), [], ended())
    assert [chunk["choices"][0]["delta"] for chunk in got] == [{"role": "assistant", "content": ""}, {}]


@pytest.mark.parametrize("kind", [CompletionAnswer, ChatAnswer])
def test_usage_only_where_asked_for(kind: Any) -> None:
    assert not any("usage" in chunk for chunk in stream(kind("1", 9, "m", wanted()), ["a"], ended()))
    *earlier, last = stream(kind("1", 9, "m", wanted(include_usage=True)), ["a"], ended())
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in earlier)
    assert (last["choices"], last["usage"]) == ([], USAGE)


@pytest.mark.parametrize("kind", [CompletionAnswer, ChatAnswer])
@pytest.mark.parametrize("include_usage", [False, True])
def test_timings_are_in_the_chunk_that_finishes_and_add_up(kind: Any, include_usage: bool) -> None:
    answer = kind("1", 9, "m", wanted(include_usage=include_usage, timings=True))
    got = stream(answer, ["a"], ended())
    (finishing,) = [chunk for chunk in got if "timings" in chunk]
    assert finishing["choices"][0]["finish_reason"] == "stop"
    check_timings(finishing["timings"])
    check_timings(whole(kind("1", 9, "m", wanted(timings=True)), "a")["timings"])


def check_timings(timings: dict[str, Any]) -> None:
    assert tuple(timings["segments_ms"]) == SEGMENTS
    assert timings["ttft_ms"] == 1.234567
    assert abs(sum(timings["segments_ms"].values()) - timings["e2e_ms"]) < 1e-9
    assert [round(ms * 1e6) for ms in timings["segments_ms"].values()] == list(SEGMENTS_NS)
    assert abs(sum(timings["ttft_segments_ms"].values()) - timings["ttft_ms"]) < 1e-9
    assert tuple(timings["ttft_segments_ms"]) == SEGMENTS


def test_timings_without_a_token() -> None:
    body = whole(ChatAnswer("1", 9, "m", wanted(timings=True)), "", completion=ended(ttft_ns=None))
    assert body["timings"]["ttft_ms"] is None and body["timings"]["ttft_segments_ms"] == {}


def test_whole_answers() -> None:
    body = whole(ChatAnswer("1", 99, "m", wanted()), "Hi")
    assert body == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 99,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    }
    body = whole(CompletionAnswer("1", 99, "m", wanted()), "Hi")
    assert body["choices"] == [{"index": 0, "text": "Hi", "logprobs": None, "finish_reason": "stop"}]


def test_choices_of_a_whole_answer() -> None:
    """The prompt that they share counts once."""
    body = whole(CompletionAnswer("1", 99, "m", wanted(2)), "a", "b")
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [(0, "a"), (1, "b")]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (7, 6)


def test_choices_of_a_stream_come_as_they_are_said() -> None:
    answer = ChatAnswer("1", 99, "m", wanted(2, include_usage=True))
    first, second = answer.choices
    said = second.delta("B") + first.delta("A") + second.finish(ended()) + first.finish(ended())
    *got, last = chunks(said + answer.end([ended(), ended()]))
    choices = [chunk["choices"][0] for chunk in got]
    assert [choice["index"] for choice in choices] == [1, 1, 0, 0, 1, 0]
    roles = [choice["delta"].get("role") for choice in choices]
    assert roles == ["assistant", None, "assistant", None, None, None]
    assert last["usage"]["completion_tokens"] == 6 and not last["choices"]


@pytest.mark.parametrize("cut", [1, 2, 5, 100])
def test_reasoning_comes_apart(cut: int) -> None:
    text = "\n<think>\nTwo and two.\n</think>\n\nFour <think>is it</think>."
    asked = wanted(reasoning=ReasoningTags())
    pieces = [text[at : at + cut] for at in range(0, len(text), cut)]
    deltas = [
        chunk["choices"][0]["delta"] for chunk in stream(ChatAnswer("1", 9, "m", asked), pieces, ended())
    ]
    thought = "".join(delta.get("reasoning_content", "") for delta in deltas)
    said = "".join(delta.get("content", "") for delta in deltas)
    assert (thought, said) == ("Two and two.\n", "Four <think>is it</think>.")
    message = whole(ChatAnswer("1", 9, "m", asked), text)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (thought, said)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (404, "invalid_request_error"),
        (413, "invalid_request_error"),
        (429, "overloaded_error"),
        (503, "service_unavailable_error"),
        (500, "server_error"),
    ],
)
def test_error_objects(status: int, kind: str) -> None:
    error = RequestError("no", status=status, param="p", code="c")
    assert error_object(error) == {"message": "no", "type": kind, "param": "p", "code": "c"}


def test_an_error_ends_a_stream() -> None:
    assert chunks(error_event(SERVER_ERROR)) == [{"error": error_object(SERVER_ERROR)}]


def test_frames() -> None:
    frames = Answered('a"', wanted()[0])
    assert msgspec.json.decode(frames.accepted()) == {"type": "accepted", "id": 'a"'}
    for text in TEXTS:
        expected = {"type": "delta", "id": 'a"', "text": text, "tokens": 4}
        assert msgspec.json.decode(frames.delta(text, 4)) == expected
    assert msgspec.json.decode(frames.done(ended(FinishReason.CANCELLED))) == {
        "type": "done",
        "id": 'a"',
        "finish_reason": "cancelled",
        "usage": USAGE,
    }
    check_timings(msgspec.json.decode(Answered("a", wanted(timings=True)[0]).done(ended()))["timings"])


def test_an_error_that_passes_says_when() -> None:
    error = RequestError("later", status=429, code="wait", retry_after_s=3)
    assert error_object(error)["retry_after_s"] == 3


def test_error_frames() -> None:
    error = RequestError("no", code="c")
    assert msgspec.json.decode(error_frame(None, error)) == {
        "type": "error",
        "id": None,
        "error": error_object(error),
    }
    assert msgspec.json.decode(Answered("a", wanted()[0]).error(error))["id"] == "a"
