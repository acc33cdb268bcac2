"""Grammars on the device side: what a random model says under them, at temperature 1, two steps in flight."""

import json
import re
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.core.detok import Detokenizer, Vocabulary
from pipeline.core.prompts import PromptEncoder
from pipeline.gpu.backends import Opened
from pipeline.gpu.models import find_model
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import Runner, build_runner, load_runner
from pipeline.grammar import CompiledGrammars
from pipeline.grammar.library import TokenizerSpec
from pipeline.messages import Grammar, SamplingParams
from tests.gpu.driver import TINY, random_tensors
from tests.gpu.padded_ops import PaddedOps
from tests.gpu.recording_device import RecordingDevice
from tests.gpu.two_in_flight import Asked, generate
from tests.schemas import SCHEMAS

CARD = byte_card()
BYTES = replace(TINY, vocab_size=CARD.architecture.vocab_size)
VOCABULARY = Vocabulary(CARD.new_tokenizer(), BYTES.vocab_size)
SPEC = TokenizerSpec(CARD.tokenizer_json, BYTES.vocab_size, CARD.eos_ids)
OPTIONS = RunnerOptions(
    device="cpu", dtype="float32", backend="torch", num_blocks=512, max_num_seqs=32, max_model_len=1024
)
ANYTHING = SamplingParams(temperature=1.0, max_tokens=400, stop_token_ids=CARD.eos_ids)


def runner_of(monkeypatch: pytest.MonkeyPatch, device: RecordingDevice | None = None, **how: Any) -> Runner:
    options = replace(OPTIONS, **how)

    def open_model(architecture: Any, weights: Any, _options: Any, dtype: Any, where: Any, _e: Any) -> Opened:
        ops = PaddedOps(where, options.block_size, "fp32")
        model = find_model("llama").load(architecture, weights, ops, dtype, where)
        return Opened(model, ops, None, "fp32", can_capture=True)

    with monkeypatch.context() as patch:
        patch.setattr("pipeline.gpu.runner.open_model", open_model)
        if device is not None:
            patch.setattr("pipeline.gpu.runner.open_device", lambda kind, clock: device)
        return build_runner(BYTES, random_tensors(BYTES), options, grammars=CompiledGrammars(SPEC))


def asked(number: int, grammar: Grammar | None, **how: Any) -> Asked:
    prompt = [(7 * number + k) % 256 for k in range(5 + number % 9)]
    return prompt, replace(ANYTHING, seed=number, grammar=grammar, **how)


def of_schema(schema: object) -> Grammar:
    return Grammar("json", json.dumps(schema))


def text_of(token_ids: list[int]) -> str:
    """An answer that came to its end."""
    assert token_ids[-1] in CARD.eos_ids, "it did not end by itself"
    detokenizer = Detokenizer(VOCABULARY)
    return "".join(map(detokenizer.push, token_ids)) + detokenizer.flush()


def validate(schema: Any, text: str) -> None:
    draft = jsonschema.Draft202012Validator
    draft(schema, format_checker=draft.FORMAT_CHECKER).validate(json.loads(text))


def test_all_answers_are_as_their_schemas_say(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [asked(number, of_schema(schema)) for number, schema in enumerate(SCHEMAS)]
    answers = generate(runner_of(monkeypatch), requests)
    for schema, answer in zip(SCHEMAS, answers, strict=True):
        validate(schema, text_of(answer))


MIXED = [
    asked(1, of_schema(SCHEMAS[-1])),
    asked(2, None, max_tokens=30),
    asked(3, Grammar("regex", "[a-f]{20,30}z")),
    asked(4, None, allowed_token_ids=(65, 66), max_tokens=30),
    asked(5, of_schema(SCHEMAS[-2]), repetition_penalty=1.5),
    asked(6, Grammar("choice", '["yes","no","per\\"haps"]'), logit_bias=((ord("n"), -100.0),)),
    asked(7, Grammar("lark", 'start: item+ "!"\nitem: /[a-c]{3}/ ", "'), temperature=1.5),
    asked(8, None, min_p=0.1, max_tokens=30),
    asked(9, Grammar("regex", "(ab){20}"), logprobs=2),
    *(asked(number, of_schema(SCHEMAS[-number])) for number in range(10, 16)),
]


def test_texts_do_not_depend_on_neighbours_preemption_or_a_late_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = runner_of(monkeypatch)
    together = generate(runner, MIXED)
    assert [generate(runner, [MIXED[at]])[0] for at in (0, 2, 4, 8)] == [together[at] for at in (0, 2, 4, 8)]
    few = runner_of(monkeypatch, num_blocks=32, max_model_len=500)  # so that sequences are preempted
    assert generate(few, MIXED) == together
    assert generate(runner_of(monkeypatch, RecordingDevice()), MIXED) == together
    texts = [text_of(answer) for (_, how), answer in zip(MIXED, together, strict=True) if how.grammar]
    assert re.fullmatch("[a-f]{20,30}z", texts[1])
    assert texts[3] in ("yes", 'per"haps')
    assert re.fullmatch("([a-c]{3}, )+!", texts[4])
    assert texts[5] == "ab" * 20
    for text in (texts[0], texts[2], *texts[6:]):
        json.loads(text)


def test_a_grammar_goes_before_bans_that_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    banned = {"bad_token_ids": ((ord("a"),),), "min_tokens": 50, "end_ids": CARD.eos_ids}
    (answer,) = generate(runner_of(monkeypatch), [asked(1, Grammar("regex", "[ab]{8}a"), **banned)])
    assert text_of(answer) == "b" * 8 + "a"


def test_a_grammar_that_fails_ends_its_own_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was refused at the door; here it comes to the runner all the same."""
    monkeypatch.setattr("pipeline.grammar.library.MAX_LEXER_STATES", 40)
    broken, deep = Grammar("regex", "(("), Grammar("regex", "[a-f]{120}")
    requests = [
        asked(1, broken),
        asked(2, Grammar("regex", "[a-f]{20}")),
        asked(3, deep),
        asked(4, None, max_tokens=30),
    ]
    runner = runner_of(monkeypatch)
    answers = generate(runner, requests)
    assert answers[0] == []
    assert len(text_of(answers[1])) == 20
    assert 0 < len(answers[2]) < 120 and answers[2][-1] not in CARD.eos_ids
    assert answers[3] == generate(runner, [requests[3]])[0]


def test_a_popular_grammar_does_not_wear_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies share the states of their lexer, and the limit on them: past it they are compiled anew."""
    monkeypatch.setattr("pipeline.grammar.library.MAX_LEXER_STATES", 150)
    grammar = Grammar("regex", "[ab]*a[ab]{12}")
    runner = runner_of(monkeypatch)
    for number in range(3):
        answers = generate(runner, [asked(4 * number + k, grammar) for k in range(4)])
        assert all(re.fullmatch(grammar.text, text_of(answer)) for answer in answers)


@pytest.mark.nightly
@pytest.mark.model
def test_the_real_model_says_what_a_hundred_schemas_say(model_card: ModelCard) -> None:
    runner = load_runner(model_card, RunnerOptions(max_model_len=1024, num_blocks=1024))
    encoder = PromptEncoder(model_card.new_tokenizer())
    (prompt,) = encoder.encode(["Here is some JSON for you:\n"], is_rendered=True)
    how = replace(ANYTHING, stop_token_ids=model_card.eos_ids)
    vocabulary = Vocabulary(model_card.new_tokenizer(), model_card.architecture.vocab_size)
    left = SCHEMAS
    for seed in range(5):  # schemas that refer to themselves may well go on until max_tokens
        requests = [(list(prompt.ids), replace(how, seed=seed, grammar=of_schema(schema))) for schema in left]
        answers = list(zip(left, generate(runner, requests), strict=True))
        left = [schema for schema, answer in answers if answer[-1] not in model_card.eos_ids]
        for schema, answer in answers:
            if answer[-1] in model_card.eos_ids:
                detokenizer = Detokenizer(vocabulary)
                validate(schema, "".join(map(detokenizer.push, answer)) + detokenizer.flush())
    assert not left
