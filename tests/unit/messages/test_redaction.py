"""What a redacted message holds of what was said: nothing; and it is as long as it was."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pipeline.messages import (
    NO_TOKEN,
    ChatMessage,
    GenerateRequest,
    Grammar,
    SamplingParams,
    StepPlan,
    Terms,
    TextBatch,
    TokenBatch,
    TokenizedRequest,
    ToolCall,
)
from pipeline.messages.prose import TEXT, Prose, prose
from pipeline.messages.recorded import encode
from pipeline.messages.redaction import Redactor
from pipeline.topology import WHOLE
from tests.any_message import any_message
from tests.marked_message import Marks

IDS = [ord(char) for char in TEXT]
END = 256
REDACTOR = Redactor(Prose(IDS, frozenset({END, NO_TOKEN}), b"key"))
PHASES = (Phase.explicit, Phase.generate)
"""Messages take minutes to shrink, and do not tell more then."""
CARRIED = sorted({link.carries for link in WHOLE.links}, key=str)

SAID = {
    "GenerateRequest.prompt",
    "ChatMessage.content",
    "ChatMessage.tool_call_id",
    "ToolCall.id",
    "ToolCall.name",
    "ToolCall.arguments",
    "GenerateRequest.tools",
    "ImagePart.data",
    "PromptImage.pixels",
    "PromptImage.digest",
    "Terms.tenant",
    "Terms.cache_salt",
    "SamplingParams.stop",
    "SamplingParams.bad_words",
    "SamplingParams.bad_token_ids",
    "SamplingParams.allowed_token_ids",
    "SamplingParams.logit_bias",
    "Grammar.text",
    "TokenCall.prompt",
    "TokenCall.token_ids",
    "TokenizedRequest.token_ids",
    "Rejected.message",
    "StepPlan.token_ids",
    "Scored.token_ids",
    "Admitted.token_ids",
    "RecordedStep.token_ids",
    "RecordedStep.embeddings",
    "SampledBatch.token_ids",
    "PooledRow.embedding",
    "TokenBatch.token_ids",
    "TokenBatch.embeddings",
    "TextBatch.texts",
    "TextBatch.embeddings",
    "Started.stop",
    "Started.tenant",
    "Logprobs.token_ids",
    "Logprobs.values",
    "Logprobs.top_ids",
    "Logprobs.top_values",
    "TokenLogprob.piece",
    "TokenLogprob.value",
    "TokenLogprob.top",
    "DiskMove.parent",
    "DiskMove.tokens",
    "DiskMove.key",
}
"""Of these nothing may be kept; docs/recording.md lists them."""

NUMBERS_BESIDE = {"SamplingParams.logit_bias"}
"""Keeps the biases, of other tokens."""

TEXTS_KEPT = {
    "ChatMessage.role",
    "ImagePart.field",
    "SamplingParams.unstopped",
    "Started.unstopped",
    "Terms.kv_eviction",
    "Rejected.param",
    "Rejected.code",
    "Open.trace_parent",
    "Open.parent_span_id",
    "DeviceReady.device",
    "DeviceLost.reason",
    "DiskMoved.fault",
}
"""A new text field is to be put here or into SAID. What the codec never writes is not here."""


@pytest.mark.parametrize("kind", CARRIED, ids=lambda kind: kind.__name__)
def test_nothing_that_was_said_is_kept(kind: type) -> None:
    """A field that somebody adds to a message is redacted, or named above."""
    marks = Marks()
    message = marks.message(kind)
    read = REDACTOR.redacted(message)
    kept = marks.kept(read)
    assert not (kept & SAID) - NUMBERS_BESIDE
    texts = {place for mark, place in marks.places.items() if isinstance(mark, str | bytes)}
    codec_leaves_out = {"DiskReady.secret", "Shelved.parent", "Shelved.tokens", "Shelved.key"}
    assert kept & texts <= TEXTS_KEPT | codec_leaves_out
    numbers = {place for mark, place in marks.places.items() if isinstance(mark, int | float)}
    assert numbers - SAID <= kept, "what costs nobody anything stays"


def test_the_guide_lists_what_is_replaced() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "recording.md").read_text("utf-8")
    assert sorted(SAID) == sorted(set(re.findall(r"`([A-Z]\w+\.\w+)`", guide)) - {"DeviceReady.disk"})


@pytest.mark.parametrize("kind", CARRIED, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=PHASES)
def test_its_shape_stays(kind: type, data: st.DataObject) -> None:
    message = data.draw(any_message(kind))
    redacted = REDACTOR.redacted(message)
    assert type(redacted) is type(message)
    assert REDACTOR.redacted(message) == redacted
    for field in msgspec.structs.fields(type(message)):
        old, new = getattr(message, field.name), getattr(redacted, field.name)
        if isinstance(old, list | dict | tuple):
            assert len(new) == len(old)


def test_texts_are_as_long_as_they_were() -> None:
    batch = TextBatch(1, [1, 2], ["naïve", "春はあけ"], [1, 1], [0, 0], [], [], (0,), 1, 2, 3)
    for others in ([], ["naïve", "春はあけ"], ["a" * 63], ["a" * 64, "a" * 500]):
        said = ["", "four", *others]
        texts = REDACTOR.redacted(replace(batch, texts=said)).texts
        assert [len(text.encode()) for text in texts] == [len(text.encode()) for text in said]
        assert all(text in TEXT * 2 for text in texts)
    assert len(prose(100_000, 7)) == 100_000


def tokenized(token_ids: list[int]) -> list[int]:
    request = TokenizedRequest(1, token_ids, SamplingParams(), 0, 0, (0, 0, 0))
    redacted: list[int] = REDACTOR.redacted(request).token_ids
    return redacted


def test_prompts_that_begin_alike_still_do() -> None:
    """In whole chunks of 16 tokens: that is what caches of prefixes share."""
    one, other = list(range(3000, 3100)), [*range(3000, 3050), *range(4050, 4100)]
    a, b = tokenized(one), tokenized(other)
    assert a[:48] == b[:48] and a[48:64] != b[48:64] and a[64:] != b[64:]
    assert tokenized(one) == a and set(a) <= set(IDS)
    assert tokenized([5000, *one])[16:48] != a[16:48]


def test_another_key_gives_another_text() -> None:
    other = Redactor(Prose(IDS, frozenset(), b"another"))
    request = TokenizedRequest(1, list(range(64)), SamplingParams(), 0, 0, (0, 0, 0), Terms(tenant="acme"))
    assert other.redacted(request).token_ids != REDACTOR.redacted(request).token_ids
    assert other.redacted(request).terms.tenant != REDACTOR.redacted(request).terms.tenant
    assert len(REDACTOR.redacted(request).terms.tenant) == 4


def test_ends_stay_where_they_were() -> None:
    batch = TokenBatch(1, [1, 2, 3], [3001, END, NO_TOKEN], [0, 1, 4], [], [], (0,), 1)
    token_ids = REDACTOR.redacted(batch).token_ids
    assert token_ids[1:] == [END, NO_TOKEN] and token_ids[0] in IDS
    assert tokenized([END, 3000, END])[::2] == [END, END]


@pytest.mark.parametrize(
    "token_ids",
    [[NO_TOKEN] * 5, [NO_TOKEN, NO_TOKEN, 3001, 3002], [3001, NO_TOKEN, 3002, NO_TOKEN], [3001, END], []],
)
def test_rows_of_a_plan_whose_token_is_on_the_device_stay(token_ids: list[int]) -> None:
    plan = StepPlan(7, 1, [], [], [], [], [], [], token_ids, [], [], [], [])
    redacted = REDACTOR.redacted(plan).token_ids
    assert [each if each in (NO_TOKEN, END) else -9 for each in token_ids] == [
        each if each in (NO_TOKEN, END) else -9 for each in redacted
    ]
    assert not {3001, 3002} & set(redacted)


def test_stop_strings_are_not_in_the_prose() -> None:
    """Or a replay would end where the original did not."""
    sampling = SamplingParams(stop=("the", "\n\n"), bad_words=("harbour",))
    request = GenerateRequest(1, "the harbour", None, sampling, 0, 0)
    redacted = REDACTOR.redacted(request)
    assert redacted.sampling.stop == ("###", "##") and redacted.sampling.bad_words == ("#######",)
    assert "#" not in TEXT


def test_tools_stay_tools() -> None:
    tools = '[{"type":"function","function":{"name":"find_ship","parameters":{"type":"object","properties":{'
    tools += '"captain":{"type":"string","description":"Whose ship"},"year":{"minimum":1850}}}}}]'
    arguments = '{"captain":"Ahab","year":1851}'
    chat = [ChatMessage("assistant", "", (ToolCall("call_1", "find_ship", arguments),))]
    redacted = REDACTOR.redacted(GenerateRequest(1, None, chat, SamplingParams(), 0, 0, tools=tools))
    function = msgspec.json.decode(redacted.tools)[0]["function"]
    assert function["parameters"]["type"] == "object"
    (call,) = redacted.chat[0].tool_calls
    assert call.name != "find_ship" and len(call.name) == len("find_ship")
    for word in ("ship", "captain", "Ahab", "1850", "1851"):
        assert word.encode() not in encode(redacted), word


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json", '{"const":"secret"}'),
        ("regex", "secret"),
        ("choice", '["secret","x"]'),
        ("lark", 'start: "secret"'),
    ],
)
def test_grammars_become_open_ones(kind: Any, text: str) -> None:
    request = GenerateRequest(1, "", None, SamplingParams(grammar=Grammar(kind, text)), 0, 0)
    redacted = REDACTOR.redacted(request).sampling.grammar
    assert redacted.kind == kind and "secret" not in redacted.text
    if kind == "choice":
        assert [len(choice) for choice in msgspec.json.decode(redacted.text)] == [6, 1]
