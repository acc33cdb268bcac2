import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from tokenizers import Encoding

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.core.prompts import PromptEncoder
from pipeline.errors import ConfigError
from pipeline.messages import ChatMessage, GenerateRequest, Rejected, SamplingParams, TokenizedRequest
from pipeline.runtime.trace import Point, Trace
from pipeline.stages.tokenize import Tokenize, TokenizeOptions
from tests.text_world import World, byte_fallback_tokenizer, card_of

Prompt = str | list[int] | list[ChatMessage]


def request(request_id: int, prompt: Prompt, **sampling: Any) -> GenerateRequest:
    is_chat = isinstance(prompt, list) and all(isinstance(part, ChatMessage) for part in prompt) and prompt
    return GenerateRequest(
        request_id,
        None if is_chat else prompt,  # type: ignore[arg-type]
        prompt if is_chat else None,  # type: ignore[arg-type]
        SamplingParams(**sampling),
        arrived_ns=100,
        sent_ns=150,
    )


def user(content: str) -> list[ChatMessage]:
    return [ChatMessage("user", content)]


def answers(
    requests: Sequence[GenerateRequest],
    options: TokenizeOptions | None = None,
    card: ModelCard | None = None,
    **context: Any,
) -> dict[int, TokenizedRequest | Rejected]:
    """Run the stage over the requests; what became of each."""

    async def main() -> dict[int, TokenizedRequest | Rejected]:
        world = World(Tokenize, options or TokenizeOptions(), card=card, **context)
        for message in requests:
            await world.inbox.send(message)
        world.inbox.close()
        try:
            await world.stage.start()
            await world.stage.run()
        finally:
            await world.stage.stop()
        sent = [*await world.sent(TokenizedRequest), *await world.sent(Rejected)]
        assert len(sent) == len(requests), "one answer each"
        return {message.request_id: message for message in sent}

    return asyncio.run(main())


def tokenized(message: TokenizedRequest | Rejected) -> TokenizedRequest:
    assert isinstance(message, TokenizedRequest), message
    return message


def rejected(message: TokenizedRequest | Rejected) -> Rejected:
    assert isinstance(message, Rejected), message
    return message


def test_text_ids_and_chat_in_one_batch() -> None:
    got = answers([request(1, "Hi"), request(2, [1, 2, 258]), request(3, user("Hi"), max_tokens=7)])
    assert tokenized(got[1]).token_ids == [*b"Hi"]
    assert tokenized(got[2]).token_ids == [1, 2, 258]
    expected = [257, *b"user\nHi", 258, *b"\n", 257, *b"assistant\n"]
    assert tokenized(got[3]).token_ids == expected
    assert [tokenized(got[i]).sampling.max_tokens for i in (1, 2, 3)] == [512, 512, 7]


def test_the_segments_are_the_time_since_arrival() -> None:
    ticks = iter(range(1_000, 100_000, 7))
    (message,) = answers([request(1, "Hi")], clock=lambda: next(ticks)).values()
    segments = tokenized(message).segments_ns
    assert segments[0] == 50 and all(part > 0 for part in segments)
    assert sum(segments) == tokenized(message).sent_ns - 100


def test_a_plain_prompt_gets_the_tokenizer_s_bos_and_a_chat_the_template_s() -> None:  # trap 37
    template = "{{ bos_token }}{{ messages[0].content }}"
    card = card_of(byte_fallback_tokenizer(), bos_token="<s>", chat_template=template)
    got = answers([request(1, "a"), request(2, user("a")), request(3, "")], card=card)
    first, second, third = (tokenized(got[i]).token_ids for i in (1, 2, 3))
    assert first == second and first[0] == 1 and first.count(1) == 1
    assert third == [1]  # trap 15: with a BOS token an empty prompt is one token


def test_control_tokens_in_a_prompt_are_text() -> None:  # trap 38
    got = answers([request(1, "<|end|>"), request(2, user("<|over|>"))])
    assert tokenized(got[1]).token_ids == [*b"<|end|>"]
    assert tokenized(got[2]).token_ids.count(258) == 1


REFUSED = [
    ("", {}, 400, "prompt"),  # trap 15
    ([], {}, 400, "prompt"),
    ([0, 259], {}, 400, "prompt"),
    ([-1], {}, 400, "prompt"),
    ("x" * 101, {}, 413, "prompt"),  # trap 42
    ("é" * 51, {}, 413, "prompt"),
    ("\ud800", {}, 400, "prompt"),
    ("x" * 60, {"max_tokens": 5}, 400, "max_tokens"),  # trap 17
    ("x" * 64, {}, 400, "prompt"),
    ([ChatMessage("user", "x" * 97)], {}, 413, "messages"),
    ([ChatMessage("user", "\udc00")], {}, 400, "messages"),
    ([ChatMessage("wizard", "x")], {}, 400, "messages"),
    ([ChatMessage("user", "x" * 50)], {}, 400, "messages"),
]


@pytest.mark.parametrize(("prompt", "sampling", "status", "param"), REFUSED)
def test_a_bad_request_is_answered_and_its_neighbours_go_on(
    prompt: Prompt, sampling: dict[str, int], status: int, param: str
) -> None:
    options = TokenizeOptions(max_prompt_bytes=100, max_model_len=64)
    got = answers([request(1, "a"), request(2, prompt, **sampling), request(3, user("b"))], options)
    assert (rejected(got[2]).status, rejected(got[2]).param) == (status, param)
    assert tokenized(got[1]).token_ids == [*b"a"] and tokenized(got[3]).token_ids


def test_the_numbers_are_in_the_message() -> None:
    options = TokenizeOptions(max_prompt_bytes=100, max_model_len=64)
    got = answers([request(1, "x" * 101), request(2, "x" * 60, max_tokens=5), request(3, [0, 259])], options)
    assert "101" in rejected(got[1]).message and "100" in rejected(got[1]).message
    assert all(number in rejected(got[2]).message for number in ("64", "60", "5"))
    assert "259" in rejected(got[3]).message and "258" in rejected(got[3]).message


def test_the_sum_may_be_the_limit() -> None:  # trap 17
    got = answers([request(1, "x" * 60, max_tokens=4)], TokenizeOptions(max_model_len=64))
    assert tokenized(got[1]).sampling.max_tokens == 4


def test_a_template_s_refusal_is_the_client_s_error() -> None:  # trap 40
    template = "{{ raise_exception('roles must alternate') }}"
    card = msgspec.structs.replace(byte_card(), chat_template=template)
    (message,) = answers([request(1, user("a"))], card=card).values()
    assert rejected(message).status == 400 and "roles must alternate" in rejected(message).message


def test_a_model_without_template_says_so() -> None:
    card = msgspec.structs.replace(byte_card(), chat_template=None)
    got = answers([request(1, user("a")), request(2, "a")], card=card)
    assert rejected(got[1]).code == "no_chat_template" and "fake" in rejected(got[1]).message
    assert tokenized(got[2]).token_ids


def test_a_fault_in_encoding_is_that_one_request_s(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = PromptEncoder.encode

    def faulty(encoder: PromptEncoder, texts: Sequence[str], *, is_rendered: bool) -> list[Encoding]:
        if "secret" in texts:
            raise ValueError("secret")
        return encode(encoder, texts, is_rendered=is_rendered)

    monkeypatch.setattr(PromptEncoder, "encode", faulty)
    with capture_logs() as logs:
        got = answers([request(1, "a"), request(2, "secret"), request(3, "b")])
    assert (rejected(got[2]).status, rejected(got[2]).code) == (500, "internal_error")
    assert tokenized(got[1]).token_ids == [*b"a"] and tokenized(got[3]).token_ids == [*b"b"]
    assert [log["request_id"] for log in logs] == [2]
    assert "secret" not in str(logs) + rejected(got[2]).message


def test_a_text_far_too_long_is_refused_before_its_ids_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PromptEncoder, "ids_of", None)
    (message,) = answers([request(1, "x" * 100_000)]).values()
    assert rejected(message).code == "context_length_exceeded"


def test_a_longer_length_than_the_model_s_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match=r"8193.*8192"):
        answers([], TokenizeOptions(max_model_len=8193))


def test_encoding_is_off_the_loop_and_once_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    encode = PromptEncoder.encode

    def watched(encoder: PromptEncoder, texts: Sequence[str], *, is_rendered: bool) -> list[Encoding]:
        calls.append((threading.current_thread().name, len(texts)))
        return encode(encoder, texts, is_rendered=is_rendered)

    monkeypatch.setattr(PromptEncoder, "encode", watched)
    answers([request(i, "a") for i in range(40)])
    assert [size for _, size in calls] == [16, 16, 8]
    assert {name for name, _ in calls} == {"stage_0"}


def test_instances_share_an_inbox_and_stop_their_threads() -> None:
    async def main() -> None:
        world = World(Tokenize, TokenizeOptions())
        inbox = world.inbox
        pool = [world.stage, Tokenize(world.stage.ctx, TokenizeOptions())]
        await asyncio.gather(*(stage.start() for stage in pool))
        for i in range(100):
            await inbox.send(request(i, f"prompt {i}"))
        inbox.close()
        await asyncio.gather(*(stage.run() for stage in pool))
        sent = await world.sent(TokenizedRequest)
        assert {bytes(each.token_ids).decode() for each in sent} == {f"prompt {i}" for i in range(100)}
        assert all(stage.service.num_batches > 1 for stage in pool)
        for stage in (*pool, *pool):
            await stage.stop()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("stage")]

    asyncio.run(main())


def test_trace() -> None:
    trace = Trace()
    answers([request(5, "abc")], trace=trace)
    assert [(point[3], point[4]) for point in trace.points() if point[1] == Point.TOKENIZED] == [(5, 3)]
