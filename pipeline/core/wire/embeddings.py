"""POST /v1/embeddings: what is asked for, and the answer, in OpenAI's shapes.

The answer is encoded input by input, as they come, so that a long one does not hold the loop up.
"""

from array import array
from base64 import b64encode
from collections.abc import Iterable
from typing import NamedTuple, get_args

import msgspec

from pipeline.core.wire.faults import SERVER_ERROR
from pipeline.core.wire.fields import Fields, decode_object, wrong
from pipeline.core.wire.limits import Limits
from pipeline.core.wire.prompts import check_prompt, split_prompts
from pipeline.core.wire.requests import Wanted, check_model
from pipeline.core.wire.sampling import parse_truncation
from pipeline.core.wire.terms import parse_plain_terms
from pipeline.core.wire.usage import timings_of
from pipeline.errors import RequestError
from pipeline.messages import Completion, Pooling, SamplingParams

MAX_INPUTS = 2048
"""As OpenAI has it."""
POOLINGS: tuple[Pooling, ...] = tuple(each for each in get_args(Pooling) if each)
FORMATS = ("float", "base64")
NEUTRAL: dict[str, tuple[object, ...]] = {"dimensions": (), "normalize": (True,)}
"""What is not built: no model here was trained so that a part of its embedding is one."""

_encode = msgspec.json.Encoder().encode


class EmbeddingsWanted(NamedTuple):
    """One checked request: of the same `sampling` and `terms`, an embedding for each input."""

    inputs: list[Wanted]
    is_base64: bool
    timings: bool


def parse_embeddings(body: bytes, limits: Limits) -> EmbeddingsWanted:
    """The body of POST /v1/embeddings. Raises RequestError."""
    fields = Fields(decode_object(body))
    inputs = _inputs(fields.take("input"))
    check_model(fields.text("model"), limits)
    pooling = _pooling(fields, limits)
    is_base64 = _one_of(fields, "encoding_format", FORMATS) == "base64"
    # the embedding is counted as one token; its context is kept whole
    sampling = SamplingParams(max_tokens=1, truncate_prompt_tokens=parse_truncation(fields, limits))
    terms = msgspec.structs.replace(parse_plain_terms(fields), kv_eviction="none")
    timings = fields.flag("timings")
    fields.finish(NEUTRAL)
    # how long a prompt may be is tokenize's to say
    prompts = [check_prompt(each, limits, is_truncated=True, name="input") for each in inputs]
    wanted = [Wanted(each, None, sampling, terms=terms, pooling=pooling) for each in prompts]
    return EmbeddingsWanted(wanted, is_base64, timings)


def _inputs(value: object) -> list[object]:
    if value is None:
        raise RequestError("'input' is missing.", param="input", code="missing_field")
    inputs = split_prompts(value)
    if len(inputs) > MAX_INPUTS:
        raise wrong("input", f"at most {MAX_INPUTS} texts or lists of token ids", value)
    return inputs


def _pooling(fields: Fields, limits: Limits) -> Pooling:
    given = _one_of(fields, "pooling", POOLINGS)
    return next((each for each in POOLINGS if each == given), limits.pooling)


def _one_of(fields: Fields, name: str, allowed: tuple[str, ...]) -> str | None:
    value = fields.text(name)
    if value is not None and value not in allowed:
        raise wrong(name, f"one of {', '.join(allowed)}", value)
    return value


class EmbeddingsAnswer:
    """`add` each input's, in order, then `body`."""

    def __init__(self, model: str, asked: EmbeddingsWanted) -> None:
        self._model = model
        self._asked = asked
        self._items: list[bytes] = []
        self._completions: list[Completion] = []

    def add(self, completion: Completion) -> None:
        """Raises RequestError 500 where the model has given no numbers."""
        vector = array("f", completion.embedding or b"")
        if not vector or vector[0] != vector[0]:
            raise SERVER_ERROR
        embedding = b64encode(vector.tobytes()).decode() if self._asked.is_base64 else vector.tolist()
        index = len(self._items)
        self._items.append(_encode({"object": "embedding", "index": index, "embedding": embedding}))
        self._completions.append(completion)

    def body(self) -> bytes:
        timings = _encode(timings_of(self._completions[0].timings)) if self._asked.timings else b""
        return b"".join(
            (
                b'{"object":"list","data":[',
                b",".join(self._items),
                b'],"model":' + _encode(self._model),
                b',"usage":' + _encode(_usage(self._completions)),
                b',"timings":' + timings if timings else b"",
                b"}",
            )
        )


def _usage(completions: Iterable[Completion]) -> dict[str, int]:
    num_tokens = sum(each.num_prompt_tokens for each in completions)
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
