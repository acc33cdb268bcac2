"""What ways of keeping KV cost in quality: the comparison, and the command that prints it."""

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import structlog
import torch

from pipeline.__main__ import main
from pipeline.checkpoint import ModelCard, describe
from pipeline.errors import ConfigError
from pipeline.gpu.evaluate import Score, Setting, compare
from pipeline.gpu.kv_dtype import token_bytes
from pipeline.gpu.weights import load_tensors
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


def test_a_text_shorter_than_a_window_is_refused(card: ModelCard) -> None:
    with pytest.raises(ConfigError, match="the text has 255 tokens: at least 256 are needed"):
        compare(card, [1] * 255, [Setting("fp32")], 2048, quiet)


@pytest.mark.usefixtures("fresh_logs")
def test_the_command_prints_a_table_or_json(
    card: ModelCard, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = tmp_path / "text"
    text.write_text("a b c d e " * 600)
    arguments = ["eval", "--model", str(card.path), "--text", str(text), "--max-tokens", "600"]
    arguments += ["--weights", "fp32", "--kv-dtype", "int8", "int4"]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "fp32 weights, 510 predictions" in printed.out
    assert "fp32 weights, int8 KV ..." in printed.err
    assert main([*arguments, "--json"]) == 0
    scores = msgspec.json.decode(capsys.readouterr().out, type=list[Score])
    assert [score.kv for score in scores] == ["fp32", "int8", "int4"]
    assert scores[1].perplexity == pytest.approx(scores[0].perplexity * (1 + scores[1].increase))
