"""Any change to what a stage has said is caught, unless it is equivalent by declaration: then never."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pipeline.bench.feeds import sampled_batch
from pipeline.bench.samples import (
    STOP,
    Load,
    place,
    step_plan,
    steps,
    text_batch,
    token_batch,
    tokenized_request,
)
from pipeline.checkpoint.fake import byte_card
from pipeline.messages import (
    Cancel,
    FinishReason,
    Logprobs,
    Rejected,
    SpelledLogprobs,
    TextBatch,
    TokenBatch,
    TokenLogprob,
)
from pipeline.runtime.comparison import Comparison
from pipeline.runtime.equivalence import BY_REQUEST, MESSAGES, Equivalence
from pipeline.runtime.facts import is_time

LOAD = replace(Load.of(byte_card(), 4), num_tokens=12, num_sequences=8, stop=STOP)
STEPS = list(enumerate(steps(LOAD), 1))
REQUESTS = [
    *(tokenized_request(LOAD, number, 5) for number in range(6)),
    *(Rejected(number, "No.", 400, "prompt", None, 3) for number in range(6, 8)),
]


def texts() -> Iterator[TextBatch | Cancel]:
    for step_id, rows in STEPS:
        batch = text_batch(LOAD, step_id, rows, 5)
        entries = [TokenLogprob(b"\xf0\x9f", -0.5, [(b"a", -1.5)]) for _ in rows]
        told = SpelledLogprobs(list(batch.request_ids), entries)
        yield replace(batch, logprobs=told, scores=told)
        yield Cancel(step_id + 100, FinishReason.STOP)


def tokens() -> Iterator[TokenBatch]:
    for step_id, rows in STEPS:
        batch = token_batch(LOAD, step_id, rows, 5)
        count = len(rows)
        told = Logprobs(batch.request_ids, batch.token_ids, [-0.5] * count, [[7]] * count, [[-0.5]] * count)
        yield replace(batch, logprobs=told, scores=told)


def sampled() -> Iterator[Any]:
    for step_id, rows in STEPS:
        token_ids = [LOAD.token_ids[place(LOAD, row.request_id, row.position)] for row in rows]
        yield sampled_batch(step_plan(LOAD, step_id, rows, 5), token_ids, 5)


SAID: dict[str, tuple[Equivalence, list[Any]]] = {
    "detokenize": (BY_REQUEST, list(texts())),
    "detokenize, whole": (MESSAGES, list(texts())),
    "schedule": (BY_REQUEST, list(tokens())),
    "sample": (MESSAGES, list(sampled())),
    "tokenize": (BY_REQUEST, REQUESTS),
}
FREE = {
    ("TextBatch", "step_id"),
    ("TokenBatch", "step_id"),
    ("TokenBatch", "times"),  # how a request came to its tokens: preempted, on which worker
    ("TokenBatch", "num_cached_tokens"),
}
"""What BY_REQUEST leaves to the stage, but for times."""


def are_alike(equivalence: Equivalence, a: Sequence[object], b: Sequence[object]) -> bool:
    comparison = Comparison(equivalence)
    for message in a:
        comparison.a(message)
    for message in b:
        comparison.b(message)
    return not comparison.differences()


@st.composite
def changes(draw: st.DrawFn, equivalence: Equivalence, message: Any) -> Any:
    """The message with one leaf changed; one that counts."""
    data = as_lists(msgspec.to_builtins(message, builtin_types=(bytes,)))
    path: list[object] = []
    kind, at, holder, key = type(message).__name__, data, data, ""
    while isinstance(at, (dict, list)):
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        assume(keys)
        holder, key = at, draw(st.sampled_from(keys))
        path.append(key)
        at = holder[key]
        assume(at is not None)
    names = [name for name in path if isinstance(name, str)]
    assume(not any(map(is_time, names)))
    if equivalence is BY_REQUEST:
        assume(not any((kind, name) in FREE for name in names))
    holder[key] = draw(changed(at))
    return msgspec.convert(data, type(message), builtin_types=(bytes,))


def as_lists(value: Any) -> Any:
    """With lists for tuples."""
    if isinstance(value, dict):
        return {key: as_lists(each) for key, each in value.items()}
    return [as_lists(each) for each in value] if isinstance(value, (list, tuple)) else value


def changed(value: Any) -> st.SearchStrategy[Any]:
    """A value that is another."""
    if isinstance(value, bool):
        return st.just(not value)
    if isinstance(value, int):
        return st.sampled_from([value + 1, value - 1] if value else [value + 1])
    if isinstance(value, float):
        return st.just(value - 1.0)
    if isinstance(value, bytes):
        return st.sampled_from([value[:-1], value + b"\x00"] if value else [b"\x00"])
    assert isinstance(value, str)
    others = [value + "\ud83d", value + " ", *([value[:-1], value[1:]] if value else [])]
    return st.sampled_from(others)


@pytest.mark.parametrize("stage", SAID)
@settings(max_examples=30)
@given(data=st.data())
def test_a_changed_field_is_caught(stage: str, data: st.DataObject) -> None:
    equivalence, said = SAID[stage]
    at = data.draw(st.integers(0, len(said) - 1))
    try:
        other = data.draw(changes(equivalence, said[at]))
    except (msgspec.ValidationError, UnicodeEncodeError):  # not one of the words that there are
        assume(False)
    assert not are_alike(equivalence, said, [*said[:at], other, *said[at + 1 :]])


@pytest.mark.parametrize("stage", SAID)
@settings(max_examples=30)
@given(data=st.data())
def test_a_message_that_is_lost_or_said_twice_is_caught(stage: str, data: st.DataObject) -> None:
    equivalence, said = SAID[stage]
    at = data.draw(st.integers(0, len(said) - 1))
    assert not are_alike(equivalence, said, [*said[:at], *said[at + 1 :]])
    assert not are_alike(equivalence, said, [*said[: at + 1], *said[at:]])


ROWS: dict[str, tuple[str, ...]] = {
    "TextBatch": ("request_ids", "texts", "num_tokens", "finish_reasons"),
    "TokenBatch": ("request_ids", "token_ids", "finish_reasons"),
    "SampledBatch": ("request_ids", "epochs", "token_ids"),
}


@pytest.mark.parametrize("stage", ["detokenize", "schedule", "sample"])
@settings(max_examples=30)
@given(data=st.data())
def test_a_row_that_is_lost_doubled_or_mixed_up_is_caught(stage: str, data: st.DataObject) -> None:
    equivalence, said = SAID[stage]
    at = data.draw(st.sampled_from([at for at, each in enumerate(said) if type(each).__name__ in ROWS]))
    message = said[at]
    names = ROWS[type(message).__name__]
    count = len(message.request_ids)
    row, other = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, count - 1))
    columns = {name: list(getattr(message, name)) for name in names}
    what = data.draw(st.sampled_from(["lost", "doubled", "swapped"]))
    for name, column in columns.items():
        if what == "lost":
            del column[row]
        elif what == "doubled":
            column.insert(row, column[row])
        elif name != "request_ids":
            column[row], column[other] = column[other], column[row]
    changed_message = replace(message, **columns)
    assume(changed_message != message)
    assert not are_alike(equivalence, said, [*said[:at], changed_message, *said[at + 1 :]])


@settings(max_examples=30)
@given(data=st.data())
def test_text_that_is_cut_otherwise_is_the_same(data: st.DataObject) -> None:
    """Requests mixed anew, each request's text over other batches, counts and times elsewhere."""
    batches = [each for each in SAID["detokenize"][1] if isinstance(each, TextBatch)]
    rows: dict[int, list[tuple[str, int, int]]] = {}
    for batch in batches:
        for request_id, *row in zip(
            batch.request_ids, batch.texts, batch.num_tokens, batch.finish_reasons, strict=True
        ):
            rows.setdefault(request_id, []).append(tuple(row))  # type: ignore[arg-type]
    others: list[TextBatch] = []
    while rows:
        request_id = data.draw(st.sampled_from(sorted(rows)))
        mine = rows[request_id]
        taken, rest = mine[: (count := data.draw(st.integers(1, len(mine))))], mine[count:]
        text = "".join(row[0] for row in taken)
        cut = len(text) if not rest else data.draw(st.integers(0, len(text)))
        if rest:
            rest[0] = (text[cut:] + rest[0][0], rest[0][1], rest[0][2])
            rows[request_id] = rest
        else:
            del rows[request_id]
        others.append(
            TextBatch(
                9,
                [request_id],
                [text[:cut]],
                [sum(row[1] for row in taken)],
                [taken[-1][2]],
                [],
                [],
                (),
                7,
                8,
                9,
            )
        )
    told = [replace(batch, request_ids=[], texts=[], num_tokens=[], finish_reasons=[]) for batch in batches]
    cancels = [each for each in SAID["detokenize"][1] if isinstance(each, Cancel)]
    assert are_alike(BY_REQUEST, SAID["detokenize"][1], [*told, *others, *reversed(cancels)])


@settings(max_examples=30)
@given(data=st.data())
def test_a_pool_may_answer_in_any_order(data: st.DataObject) -> None:
    assert are_alike(BY_REQUEST, REQUESTS, data.draw(st.permutations(REQUESTS)))


@settings(max_examples=30)
@given(data=st.data())
def test_messages_in_another_order_are_caught(data: st.DataObject) -> None:
    said = SAID["sample"][1]
    other = data.draw(st.permutations(said))
    assert are_alike(MESSAGES, said, other) == (other == said)


@pytest.mark.parametrize("stage", SAID)
def test_times_are_free(stage: str) -> None:
    equivalence, said = SAID[stage]
    others = []
    for message in said:
        data = as_lists(msgspec.to_builtins(message, builtin_types=(bytes,)))
        others.append(msgspec.convert(later(data), type(message), builtin_types=(bytes,)))
    assert stage == "tokenize" or any(ours != theirs for ours, theirs in zip(said, others, strict=True))
    assert are_alike(equivalence, said, others)


def later(value: Any, *, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: later(each, name=key) for key, each in value.items()}
    if isinstance(value, list):
        return [later(each, name=name) for each in value]
    return value + 17 if is_time(name) and value is not None else value


def test_there_is_something_of_everything() -> None:
    assert len(list(islice(texts(), 40))) == 40
    assert {type(each).__name__ for each in SAID["detokenize"][1]} == {"TextBatch", "Cancel"}
    assert any(each.started for each in SAID["schedule"][1])
