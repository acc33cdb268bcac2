"""What the bench asks at the door makes the request that was recorded."""

from typing import Any

import msgspec
import pytest

from pipeline.bench.requests import http_of
from pipeline.core.wire import Limits, parse_chat, parse_completion
from pipeline.messages import ChatMessage, GenerateRequest, SamplingParams

LIMITS = Limits(model="m", max_model_len=8192, vocab_size=1000)
SAMPLING = SamplingParams(
    max_tokens=7, temperature=0.5, top_p=0.9, top_k=5, seed=11, stop=("a", "b"), ignore_eos=True,
    logit_bias=((3, 1.5),), min_tokens=2, stop_token_ids=(4,), logprobs=2, presence_penalty=0.5,
)  # fmt: skip


def request(prompt: Any = None, chat: Any = None, **fields: Any) -> GenerateRequest:
    return GenerateRequest(1, prompt, chat, SAMPLING, 0, 0, **fields)


def body_of(sent: bytes | None) -> tuple[str, bytes]:
    assert sent is not None
    head, _, body = sent.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    return head.decode().split(" ")[1], body


@pytest.mark.parametrize("prompt", ["hello", [1, 2, 3]])
def test_a_completion(prompt: Any) -> None:
    path, body = body_of(http_of(request(prompt), "x"))
    assert path == "/v1/completions"
    (wanted,) = parse_completion(body, LIMITS, 99)
    assert (wanted.prompt, wanted.sampling) == (prompt, SAMPLING)


def test_a_chat() -> None:
    chat = [ChatMessage("user", "hi"), ChatMessage("tool", "42", tool_call_id="x")]
    path, body = body_of(http_of(request(chat=chat), "x"))
    assert path == "/v1/chat/completions"
    (wanted,) = parse_chat(body, LIMITS, 99)
    assert wanted.sampling == SAMPLING
    assert wanted.chat is not None
    assert [(each.role, each.content) for each in wanted.chat] == [("user", "hi"), ("user", "42")]


def test_what_was_not_asked_is_not_said() -> None:
    sent = http_of(GenerateRequest(1, "a", None, SamplingParams(), 0, 0), "x")
    assert msgspec.json.decode(body_of(sent)[1]) == {"prompt": "a"}


def test_an_embedding_is_left_out() -> None:
    assert http_of(request("a", pooling="mean"), "x") is None
