"""Every field of a request: what is accepted, and what the refusal of the rest says."""

import json
from typing import Any

import pytest

from pipeline.core.wire import Limits, Wanted, parse_chat, parse_completion, parse_frame, wanted_of
from pipeline.core.wire.requests import NEUTRAL
from pipeline.errors import RequestError
from pipeline.messages import ChatMessage, SamplingParams

LIMITS = Limits(model="m", max_model_len=2048, vocab_size=1000)
SEED = 77
USER = {"role": "user", "content": "Hi"}


def completion(**fields: Any) -> Wanted:
    return parse_completion(json.dumps({"prompt": "Hi", **fields}).encode(), LIMITS, SEED)[0]


def chat(*messages: Any, **fields: Any) -> Wanted:
    body = {"messages": list(messages) or [USER], **fields}
    return parse_chat(json.dumps(body).encode(), LIMITS, SEED)[0]


def refusal(call: Any, *args: Any, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as info:
        call(*args, **fields)
    return info.value


def test_defaults() -> None:
    wanted = completion()
    assert wanted == Wanted("Hi", None, SamplingParams(max_tokens=None, seed=SEED))
    assert (wanted.sampling.temperature, wanted.sampling.top_p, wanted.sampling.top_k) == (1.0, 1.0, 0)


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("max_tokens", 1, 1),
        ("max_tokens", 2048, 2048),
        ("temperature", 0, 0.0),
        ("temperature", 2, 2.0),
        ("temperature", 0.7, 0.7),
        ("top_p", 1, 1.0),
        ("top_p", 1e-9, 1e-9),
        ("top_k", -1, 0),
        ("top_k", 0, 0),
        ("top_k", 50, 50),
        ("seed", -(1 << 63), -(1 << 63)),
        ("seed", (1 << 63) - 1, (1 << 63) - 1),
        ("seed", 0, 0),
        ("stop", "x", ("x",)),
        ("stop", ["a", "b", "a"], ("a", "b")),
        ("stop", [], ()),
        ("ignore_eos", True, True),
        ("ignore_eos", False, False),
    ],
)
def test_sampling_fields_are_kept(field: str, given: Any, kept: Any) -> None:
    assert getattr(completion(**{field: given}).sampling, field) == kept


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("max_tokens", 0, "from 1 to 2048, but is 0"),
        ("max_tokens", -5, "from 1 to 2048, but is -5"),
        ("max_tokens", 2049, "from 1 to 2048, but is 2049"),
        ("max_tokens", 1.5, "an integer"),
        ("max_tokens", "16", "an integer from 1 to 2048, but is '16'"),
        ("max_tokens", True, "but is true"),
        ("max_tokens", 10**30, "an integer"),
        ("temperature", -0.1, "from 0 to 2, but is -0.1"),
        ("temperature", 2.1, "from 0 to 2, but is 2.1"),
        ("temperature", "hot", "a number"),
        ("temperature", True, "a number"),
        ("temperature", 10**30, "a number"),
        ("temperature", [], "a number"),
        ("top_p", 0, "above 0 and up to 1, but is 0"),
        ("top_p", 2, "above 0 and up to 1, but is 2"),
        ("top_p", -1e-9, "above 0"),
        ("top_k", -2, "but is -2"),
        ("top_k", 1 << 40, "an integer"),
        ("top_k", 1.0, "an integer"),
        ("seed", 1 << 63, "an integer"),
        ("seed", "7", "an integer"),
        ("stop", 5, "at most 4 strings"),
        ("stop", ["a"] * 5, "at most 4 strings"),
        ("stop", "", "1 to 64 characters"),
        ("stop", ["a", ""], "1 to 64 characters"),
        ("stop", ["a", 1], "1 to 64 characters"),
        ("stop", "x" * 65, "1 to 64 characters"),
        ("ignore_eos", 1, "true or false"),
        ("stream", "yes", "true or false"),
        ("timings", 0, "true or false"),
        ("model", 5, "a string"),
        ("user", 5, "a string"),
        ("prompt", "", "empty"),
        ("prompt", [], "empty"),
        ("prompt", None, "a string or a list of token ids, but is null"),
        ("prompt", 5, "a string or a list of token ids"),
        ("prompt", {"a": 1}, "a string or a list of token ids"),
        ("prompt", ["a", ""], "'prompt' is empty"),
        ("prompt", ["a", [1000]], "token ids from 0 to 999, but is 1000"),
        ("prompt", ["a"] * 65, "64 answers are the most"),
        ("n", 9, "an integer from 1 to 8"),
        ("n", 0, "an integer from 1 to 8"),
        ("n", True, "an integer from 1 to 8"),
        ("echo", 0, "true or false"),
        ("best_of", 2, "must be the same as 'n' (1)"),
        ("prompt", [1, "a"], "token ids from 0 to 999"),
        ("prompt", [1000], "token ids from 0 to 999, but is 1000"),
        ("prompt", [-1], "token ids from 0 to 999, but is -1"),
        ("prompt", [True], "token ids from 0 to 999"),
        ("prompt", [1] * 2048, "2048"),
        ("stream_options", {"include_usage": True}, "'stream': true"),
        ("max_completion_tokens", 5, "Unsupported field"),
    ],
)
def test_completion_refuses(field: str, value: Any, says: str) -> None:
    error = refusal(completion, **{field: value})
    assert error.status == 400
    assert error.param == field
    assert error.code is not None
    assert field in error.message and says in error.message


def test_prompt_of_exactly_the_bounds_is_accepted() -> None:
    assert completion(prompt=[0, 999]).prompt == [0, 999]
    assert completion(prompt=[1] * 2047).prompt == [1] * 2047


def test_missing_prompt_and_messages() -> None:
    assert refusal(parse_completion, b"{}", LIMITS, 0).param == "prompt"
    assert refusal(parse_chat, b"{}", LIMITS, 0).param == "messages"


def test_null_is_absent() -> None:
    nulls = dict.fromkeys(("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stream", "model"))
    assert completion(**nulls) == completion()


def test_unknown_model_is_404() -> None:
    error = refusal(completion, model="gpt-9")
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert "'gpt-9'" in error.message and "'m'" in error.message
    assert completion(model="m") == completion()


@pytest.mark.parametrize("field", ["min_p2", "stop_ids", "messages", "max_completion_tokens", "Temperature"])
def test_unknown_fields_are_named(field: str) -> None:
    error = refusal(completion, **{field: 1})
    assert error.message == f"Unsupported field '{field}'." and error.param == field
    assert error.code == "unsupported_field"


def test_an_unknown_field_is_refused_even_if_null() -> None:
    assert refusal(completion, surprise=None).param == "surprise"


@pytest.mark.parametrize(
    ("field", "value"), [(name, v) for name, values in NEUTRAL.items() for v in (*values, None)]
)
def test_neutral_values_are_accepted(field: str, value: Any) -> None:
    assert completion(**{field: value}) == completion()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{}]),
        ("suffix", "x"),
    ],
)
def test_what_is_not_built_is_refused_by_name(field: str, value: Any) -> None:
    error = refusal(completion, **{field: value})
    assert (error.status, error.param, error.code) == (400, field, "unsupported_value")
    assert f"'{field}' is not supported" in error.message


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "truncated (byte 0)"),
        (b'{"prompt": "Hi"', "truncated (byte 15)"),
        (b'{"prompt": "Hi",}', "(byte 16)"),
        (b"{'prompt': 1}", "(byte 1)"),
        (b'{"prompt":"a","temperature":NaN}', "(byte 28)"),
        (b'{"prompt":"a","temperature":Infinity}', "(byte 28)"),
        (b'{"prompt":"a","temperature":-Infinity}', "(byte 29)"),
        (b'{"prompt":"a","temperature":1e999}', "out of range"),
        (b'{"prompt":"\xff"}', "UTF-8"),
        (b'{"prompt":"\\ud800"}', "Invalid JSON"),
        (b'{"prompt":"a"} x', "trailing characters"),
        (b'"prompt"', "a JSON object is expected"),
        (b"[]", "a JSON object is expected, but this is a list"),
        (b"null", "a JSON object is expected, but this is null"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"\x00\x01\x02", "(byte 0)"),
    ],
)
def test_invalid_json_says_where(body: bytes, says: str) -> None:
    error = refusal(parse_completion, body, LIMITS, 0)
    assert (error.status, error.code) == (400, "invalid_json")
    assert says in error.message


def test_messages_do_not_repeat_a_long_or_nested_value() -> None:
    assert len(refusal(completion, temperature="x" * 10_000).message) < 200
    assert "secret" not in refusal(completion, temperature={"a": "secret"}).message
    assert len(refusal(completion, **{"k" * 10_000: 1}).message) < 200


def test_stream_options() -> None:
    assert completion(stream=True, stream_options={"include_usage": True}).include_usage
    assert not completion(stream=True, stream_options={"include_usage": False}).include_usage
    assert not completion(stream=True, stream_options=None).include_usage
    assert refusal(completion, stream=True, stream_options=5).param == "stream_options"
    error = refusal(completion, stream=True, stream_options={"include_usage": 1})
    assert error.param == "stream_options.include_usage"
    error = refusal(completion, stream=True, stream_options={"continuous_usage_stats": True})
    assert error.param == "stream_options.continuous_usage_stats"


def test_chat_messages() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    wanted = chat({"role": "developer", "content": "s"}, {"role": "user", "content": parts})
    assert wanted.prompt is None
    assert wanted.chat == [ChatMessage("system", "s"), ChatMessage("user", "ab")]


def test_an_answer_can_be_sent_back_as_it_came() -> None:
    answer = {"role": "assistant", "content": "x", "refusal": None, "tool_calls": None, "audio": None}
    assert chat(USER, answer, USER).chat == [
        ChatMessage("user", "Hi"),
        ChatMessage("assistant", "x"),
        ChatMessage("user", "Hi"),
    ]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("Hi", "messages[1]"),
        ({"content": "x"}, "messages[1].role"),
        ({"role": "robot", "content": "x"}, "messages[1].role"),
        ({"role": ["user"], "content": "x"}, "messages[1].role"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "user", "content": []}, "messages[1].content"),
        ({"role": "user", "content": ["x"]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[1].content[0].image_url"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "b": 1}]}, "messages[1].content[0].b"),
        ({"role": "user", "content": "x", "name": "Bob"}, "messages[1].name"),
        ({"role": "user", "content": "x", "weight": 1}, "messages[1].weight"),
    ],
)
def test_chat_refuses_a_message_by_its_index(message: Any, param: str) -> None:
    error = refusal(chat, USER, message)
    assert (error.status, error.param) == (400, param)
    assert param in error.message


@pytest.mark.parametrize("value", [[], None, "Hi", {}])
def test_chat_refuses_messages(value: Any) -> None:
    error = refusal(chat, messages=value)
    assert error.param == "messages"


def test_chat_bounds_messages_and_parts() -> None:
    part = {"type": "text", "text": ""}
    assert "4096" in refusal(chat, *[USER] * 4097).message
    assert "4096" in refusal(chat, {"role": "user", "content": [part] * 4096}).message
    assert chat({"role": "user", "content": [part] * 4095}).chat == [ChatMessage("user", "")]


def test_chat_max_tokens_has_two_names() -> None:
    assert chat(max_tokens=5).sampling.max_tokens == 5
    assert chat(max_completion_tokens=6).sampling.max_tokens == 6
    assert chat(max_tokens=6, max_completion_tokens=6).sampling.max_tokens == 6
    assert "(5)" in refusal(chat, max_tokens=5, max_completion_tokens=6).message
    assert refusal(chat, max_completion_tokens=0).param == "max_completion_tokens"


def frame(**fields: Any) -> Wanted:
    parsed = parse_frame(json.dumps({"type": "generate", "id": "a", **fields}))
    assert (parsed.id, parsed.type) == ("a", "generate")
    return wanted_of(parsed.fields, LIMITS, SEED)


def test_frames_carry_either_doors_fields() -> None:
    assert frame(prompt="Hi", temperature=0) == completion(temperature=0)
    assert frame(messages=[USER], max_completion_tokens=3) == chat(max_tokens=3)
    assert frame(prompt="Hi", stream=True) == completion()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "Hi", "messages": [USER]}, "prompt"),
        ({"prompt": "Hi", "stream": False}, "stream"),
        ({"prompt": "Hi", "stream_options": {}}, "stream_options"),
        ({"prompt": "Hi", "top_p": 0}, "top_p"),
        ({"messages": []}, "messages"),
        ({"prompt": "Hi", "x": 1}, "x"),
    ],
)
def test_frames_refuse(fields: dict[str, Any], param: str) -> None:
    assert refusal(frame, **fields).param == param


@pytest.mark.parametrize("client_id", [None, "", 5, "x" * 129, ["a"]])
def test_a_frame_needs_an_id(client_id: Any) -> None:
    error = refusal(parse_frame, json.dumps({"type": "cancel", "id": client_id}))
    assert error.param == "id" and "1 to 128 characters" in error.message


def several(**fields: Any) -> list[Wanted]:
    return parse_completion(json.dumps({"prompt": "Hi", **fields}).encode(), LIMITS, SEED)


def test_choices_are_all_answers_to_each_prompt_with_seeds_of_their_own() -> None:
    wanted = several(prompt=["a", [1, 2]], n=2, best_of=2, stream=True)
    assert [each.prompt for each in wanted] == ["a", "a", [1, 2], [1, 2]]
    assert [each.sampling.seed for each in wanted] == [SEED, SEED + 1] * 2
    assert all(each.stream and each.num_alike == 2 for each in wanted)
    last = (1 << 63) - 1
    assert [each.sampling.seed for each in several(n=2, seed=last)] == [last, -(1 << 63)]


def test_echo_says_the_prompt_first() -> None:
    assert [each.echo for each in several(prompt=["a", "b"], echo=True)] == ["a", "b"]
    assert several(echo=False)[0].echo == ""
    error = refusal(several, prompt=[1, 2], echo=True)
    assert (error.param, error.status) == ("echo", 400)
