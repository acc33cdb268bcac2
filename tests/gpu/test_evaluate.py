"""What ways of keeping KV cost in quality: the comparison, and the command that prints it."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import structlog
import torch

from pipeline.__main__ import main
from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import describe
from pipeline.errors import ConfigError
from pipeline.gpu.evaluation.answers import AnswerScore, answer_all, compare_answers, num_alike
from pipeline.gpu.evaluation.evaluate import Score, Setting, compare
from pipeline.gpu.kv.dtype import token_bytes
from pipeline.gpu.weights.load import load_tensors
from tests.gpu.oracle import hugging_face
from tests.tiny_models import write_gguf

SIZE = 256
"""Tokens a window: all that the tiny model reads."""


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> ModelCard:
    """A tiny model of random weights."""
    return describe(write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf"), "tiny")


@pytest.fixture
def token_ids(card: ModelCard) -> list[int]:
    return [k * k * 7 % card.architecture.vocab_size for k in range(2 * SIZE + 100)]


@pytest.fixture
def fresh_logs() -> Iterator[None]:
    """A command sets the logs up for its whole process."""
    yield
    structlog.reset_defaults()


def quiet(line: str) -> None:
    pass


def test_the_baseline_is_what_transformers_says(card: ModelCard, token_ids: list[int]) -> None:
    (baseline,) = compare(card, token_ids, [Setting("fp32")], SIZE, quiet)
    windows = torch.tensor(token_ids[: 2 * SIZE]).view(2, SIZE)
    with torch.inference_mode():
        loss = hugging_face(card.architecture, load_tensors(card))(windows, labels=windows).loss
    assert baseline.perplexity == pytest.approx(math.exp(loss.item()), rel=1e-4)
    assert baseline.num_tokens == 2 * (SIZE - 1)
    assert (baseline.increase, baseline.agreement) == (0, 1)


def test_more_bits_of_kv_are_nearer_to_all_of_them(card: ModelCard, token_ids: list[int]) -> None:
    settings = [Setting("fp32"), *(Setting("fp32", kv) for kv in ("bf16", "int8", "fp8", "int4"))]
    scores = compare(card, token_ids, settings, SIZE, quiet)
    assert [score.kv for score in scores] == ["fp32", "bf16", "int8", "fp8", "int4"]
    bytes_a_token = [token_bytes(card.architecture, setting.kv_dtype) for setting in settings]
    assert [score.kv_bytes_a_token for score in scores] == bytes_a_token
    agreement = [score.agreement for score in scores]
    assert agreement == sorted(agreement, reverse=True)
    assert agreement[1] > 0.9 > agreement[4] > 0.2


def test_what_is_within_the_budget_does_not_count(card: ModelCard, token_ids: list[int]) -> None:
    sparse = [Setting("fp32", kv_eviction=kind, kv_budget=128) for kind in ("sink_window", "heavy_hitter")]
    scores = compare(card, token_ids, [Setting("fp32"), *sparse], SIZE, quiet)
    assert [score.num_tokens for score in scores] == [2 * (SIZE - 1 - 128)] * 3
    assert [score.kv for score in scores][1] == "fp32, sink_window of 128 tokens"
    assert all(score.agreement < 0.9 and score.increase != 0 for score in scores[1:])


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (32, "'kv_budget' must be at least 48"),
        (SIZE, "a budget of 256 tokens drops nothing of windows of 256"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(card: ModelCard, budget: int, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        compare(card, [1] * SIZE, [Setting("fp32", None, "sink_window", budget)], SIZE, quiet)


def test_a_text_shorter_than_a_window_is_refused(card: ModelCard) -> None:
    with pytest.raises(ConfigError, match="the text has 255 tokens: at least 256 are needed"):
        compare(card, [1] * 255, [Setting("fp32")], 2048, quiet)


def test_answers_are_compared_up_to_where_they_part(card: ModelCard, token_ids: list[int]) -> None:
    prompts = [token_ids[at : at + 20] for at in (0, 20)] + [token_ids[:150]]
    settings = [Setting("fp32"), *(Setting("fp32", kv) for kv in ("bf16", "int4"))]
    baseline, fine, coarse = compare_answers(card, prompts, settings, 6, quiet)
    assert (baseline.num_answers, baseline.same, baseline.agreement) == (3, 1, 1)
    assert 3 <= baseline.num_tokens <= 18
    assert fine.agreement > coarse.agreement and coarse.same < 1
    with pytest.raises(ConfigError, match="a prompt of 150 tokens and an answer of 107 are more than"):
        compare_answers(card, prompts, settings, 107, quiet)
    assert num_alike([1, 2, 3], [1, 2, 4]) == 2
    assert num_alike([1, 2], [1, 2, 4]) == 2


def test_an_answer_is_transformers_own(card: ModelCard, token_ids: list[int]) -> None:
    prompt = token_ids[:150]
    (answer,) = answer_all(card, [prompt], Setting("fp32"), 8)
    model = hugging_face(card.architecture, load_tensors(card))
    with torch.inference_mode():
        whole = torch.tensor([prompt + answer])
        best = model(whole).logits[0, len(prompt) - 1 : -1].argmax(-1)
    assert answer == best.tolist()


@pytest.fixture
def command(card: ModelCard, tmp_path: Path) -> list[str]:
    text = tmp_path / "text"
    text.write_text("a b c d e " * 600)
    options = ["--max-tokens", "600", "--window", "256", "--weights", "fp32"]
    return ["eval", "--model", str(card.path), "--text", str(text), *options]


@pytest.mark.usefixtures("fresh_logs")
def test_the_command_prints_tables_or_json(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "hello", "id": 1}\n\n{"prompt": "world"}\n{"prompt": "no"}\n')
    command += ["--kv-dtype", "int8", "--prompts", str(prompts), "--max-prompts", "2", "--answer-tokens", "3"]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "fp32 weights, 510 predictions" in printed.out
    assert "fp32 weights, 2 answers, " in printed.out
    assert "fp32 weights, int8 KV ..." in printed.err
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    baseline, quantised = msgspec.convert(found["text"], list[Score])
    assert (baseline.kv, quantised.kv) == ("fp32", "int8")
    assert quantised.perplexity == pytest.approx(baseline.perplexity * (1 + quantised.increase))
    assert [score.kv for score in msgspec.convert(found["prompts"], list[AnswerScore])] == ["fp32", "int8"]


@pytest.mark.usefixtures("fresh_logs")
def test_a_budget_may_be_a_share_of_the_window(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--kv-eviction", "sink_window", "--kv-budget", "50%"]) == 0
    assert "254 predictions" in capsys.readouterr().out  # of 510: 128 less in each of two windows


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--kv-eviction", "sink_window", "--kv-budget", "half"], "--kv-budget: half is neither"),
        (["--kv-dtype", "int8", "--prompts", "{tmp}/none"], "--prompts: "),
        (["--kv-dtype", "int8", "--prompts", "{tmp}/text"], "--prompts: "),
        (["--prompts", "{tmp}/text"], "only with --kv-dtype or --kv-eviction"),
    ],
)
@pytest.mark.usefixtures("fresh_logs")
def test_wrong_options_are_told(
    command: list[str],
    arguments: list[str],
    reason: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    options = [argument.format(tmp=tmp_path) for argument in arguments]
    assert main([*command, *options]) == 2
    assert reason in capsys.readouterr().err
