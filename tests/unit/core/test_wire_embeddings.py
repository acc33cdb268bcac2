"""Bodies of /v1/embeddings: what is refused does not repeat what was to be embedded."""

from typing import Any

import msgspec
import pytest

from pipeline.core.wire import Limits, parse_embeddings
from pipeline.errors import RequestError

LIMITS = Limits(model="m", max_model_len=100, vocab_size=50)
SECRET = "Orinoco"
INPUTS: list[Any] = [
    {SECRET: 1},
    [1, SECRET],
    [SECRET, 1],
    [SECRET, ""],
    [[1, SECRET]],
    [[SECRET]],
    [{SECRET: SECRET}],
    [SECRET] * 3000,
    True,
]


@pytest.mark.parametrize("value", INPUTS)
def test_a_refused_input_is_not_repeated(value: Any) -> None:
    with pytest.raises(RequestError) as raised:
        parse_embeddings(msgspec.json.encode({"input": value}), LIMITS)
    assert raised.value.param == "input" and SECRET not in raised.value.message


def test_what_is_asked_for() -> None:
    body = {"input": ["a", [1, 2]], "pooling": "mean", "encoding_format": "base64", "user": "ann"}
    asked = parse_embeddings(msgspec.json.encode(body), LIMITS)
    first, second = asked.inputs
    assert (first.prompt, second.prompt, asked.is_base64, asked.timings) == ("a", [1, 2], True, False)
    assert first.pooling == second.pooling == "mean" and first.terms.kv_eviction == "none"
    assert first.sampling.max_tokens == 1 and first.terms.tenant
    assert parse_embeddings(b'{"input": "a"}', LIMITS).inputs[0].pooling == "last"
