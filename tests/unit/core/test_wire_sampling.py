"""Defaults of a checkpoint, spellings of token ids in JSON, and logprobs as they are written."""

import json
from typing import Any

import pytest

from pipeline.core.wire import Limits, parse_completion
from pipeline.core.wire.logprobs import chat_logprobs, completion_logprobs
from pipeline.errors import RequestError
from pipeline.messages import SamplingParams, TokenLogprob

DEFAULTS = SamplingParams(temperature=0.6, top_k=20, top_p=0.95, min_p=0.1, repetition_penalty=1.1)
LIMITS = Limits("m", 2048, 1000, DEFAULTS)


def sampling(**fields: Any) -> SamplingParams:
    body = json.dumps({"prompt": "Hi", **fields}).encode()
    return parse_completion(body, LIMITS, 7)[0].sampling


def test_what_is_not_said_is_as_the_checkpoint_has_it() -> None:
    assert sampling() == SamplingParams(
        temperature=0.6, top_k=20, top_p=0.95, min_p=0.1, repetition_penalty=1.1, seed=7
    )
    given = sampling(temperature=1, top_k=-1, top_p=1, min_p=0, repetition_penalty=1)
    assert given == SamplingParams(seed=7)


def test_everything_that_is_said_arrives() -> None:
    got = sampling(
        logit_bias={"0": -100, "999": 2.5},
        allowed_token_ids=[3, 4, 3],
        bad_words=["a", "a", " b"],
        min_tokens=2,
        max_tokens=2,
        stop_token_ids=[9],
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        truncate_prompt_tokens=-1,
        logprobs=20,
        typical_p=0.5,
        presence_penalty=-2,
        frequency_penalty=2,
    )
    assert got.logit_bias == ((0, -100.0), (999, 2.5)) and got.allowed_token_ids == (3, 4)
    assert got.bad_words == ("a", " b") and got.min_tokens == 2 and got.stop_token_ids == (9,)
    assert got.include_stop_str_in_output and not got.skip_special_tokens
    assert (got.truncate_prompt_tokens, got.logprobs, got.typical_p) == (-1, 20, 0.5)
    assert (got.presence_penalty, got.frequency_penalty) == (-2, 2)


@pytest.mark.parametrize("key", ["1000", "-1", "01", "1.0", "x", "", "٣", "9" * 5000])
def test_a_bias_of_what_is_no_token_id(key: str) -> None:
    with pytest.raises(RequestError) as info:
        sampling(logit_bias={key: 1})
    assert info.value.param == "logit_bias" and len(info.value.message) < 200


@pytest.mark.parametrize("value", [None, True, "1", 100.5])
def test_a_bias_that_is_no_number_in_range(value: Any) -> None:
    with pytest.raises(RequestError) as info:
        sampling(logit_bias={"5": value})
    assert info.value.param == "logit_bias.5"


def test_logprobs_in_both_shapes() -> None:
    half, rest = TokenLogprob(b"\xc3", -1.0, [(b"a", -0.5)]), TokenLogprob(b"\xa9x", -float("inf"), [])
    told, offset = completion_logprobs([half, rest], 10)
    assert told == {
        "tokens": ["�", "�x"],
        "token_logprobs": [-1.0, -9999.0],  # trap 33
        "top_logprobs": [{"a": -0.5, "�": -1.0}, {"�x": -9999.0}],
        "text_offset": [10, 11],
    }
    assert offset == 13
    (first, _) = json.loads(json.dumps(chat_logprobs([half, rest])))["content"]
    assert first == {
        "token": "�",
        "logprob": -1.0,
        "bytes": [0xC3],
        "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}],
    }
