"""LinearLengths alone, against the built-in predictor, and as the scheduler makes it from a configuration."""

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from examples.linear_lengths.predictor import LinearLengths
from pipeline import assemble, config
from pipeline.core.length_prediction import JudgedLengths, LengthPredictor, QuantileLengths
from pipeline.core.policies import SchedulingOptions
from pipeline.core.policies.make import Parts, make_policies
from pipeline.core.sequence import Sequence
from pipeline.messages import DeviceReady, SamplingParams, TokenizedRequest
from pipeline.stage_api.testing import sample_messages

DEVICE = DeviceReady(num_blocks=64, block_size=16, max_num_seqs=4, max_num_batched_tokens=64)
(REQUEST,) = sample_messages(TokenizedRequest, 1)


def asked(num_prompt_tokens: int, max_tokens: int = 1000) -> Sequence:
    sampling = SamplingParams(max_tokens=max_tokens)
    return Sequence.of(replace(REQUEST, token_ids=[7] * num_prompt_tokens, sampling=sampling))


def answered(num_prompt_tokens: int, num_output_tokens: int) -> Sequence:
    sequence = asked(num_prompt_tokens)
    sequence.token_ids += [8] * num_output_tokens
    return sequence


def predictor() -> LinearLengths:
    return LinearLengths(Parts(SchedulingOptions(), DEVICE))


def test_before_the_first_answer_it_expects_the_most() -> None:
    assert predictor().predict(asked(10, max_tokens=77)) == 77


def test_it_finds_how_answers_grow_with_their_prompts() -> None:
    lengths = predictor()
    for prompt in (10, 50, 200):
        lengths.observe(answered(prompt, 5 + 2 * prompt))
    assert lengths.predict(asked(100)) == 205
    assert lengths.predict(asked(1000, max_tokens=500)) == 500
    lengths.observe(answered(500, 0))
    assert lengths.predict(asked(5000)) == 1, "never less than one token"


def test_prompts_of_one_length_tell_of_no_slope() -> None:
    lengths = predictor()
    for length in (20, 40):
        lengths.observe(answered(100, length))
    assert lengths.predict(asked(900)) == pytest.approx(30, abs=1)


def test_of_translations_it_is_nearer_than_a_quantile() -> None:
    def mean_error(lengths: LengthPredictor) -> float:
        judged, chance = JudgedLengths(lengths), random.Random(1)
        for _ in range(600):
            prompt = chance.randint(20, 400)
            sequence = asked(prompt)
            judged.predict(sequence)
            sequence.token_ids += [8] * int(1.2 * prompt * chance.uniform(0.9, 1.1))
            judged.observe(sequence)
        return judged.error_tokens / judged.num_judged

    assert mean_error(predictor()) < 0.4 * mean_error(QuantileLengths())


def test_the_configuration_names_it() -> None:
    blueprint = assemble.check(config.load(Path(__file__).parent / "config.toml"))
    options = blueprint.options["schedule"]
    assert isinstance(options, SchedulingOptions)
    assert isinstance(make_policies(options, DEVICE).lengths._predictor, LinearLengths)
