"""A reader that drops blocks predicts what transformers predicts with the same entries hidden."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import describe
from pipeline.core.retention import KEEP_ALL, Retention
from pipeline.gpu.backends import open_model
from pipeline.gpu.evaluation.evaluate import BLOCK_SIZE, Setting
from pipeline.gpu.evaluation.reader import Reader
from pipeline.gpu.weights.load import load_tensors
from tests.gpu.oracle import hugging_face
from tests.tiny_models import write_gguf

SIZE = 256
HIDDEN = -1e30


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> ModelCard:
    return describe(write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf"), "tiny")


@pytest.fixture(scope="module")
def oracle(card: ModelCard) -> Any:
    model = hugging_face(card.architecture, load_tensors(card))
    model.set_attn_implementation("eager")  # the one that tells its attention
    return model


def token_ids(card: ModelCard) -> list[int]:
    return [k * k * 7 % card.architecture.vocab_size for k in range(SIZE)]


def read(card: ModelCard, retention: Retention, chunk: int) -> Tensor:
    """[SIZE, V]; twice, so that nothing of the first may be left in the second."""
    options = Setting("fp32").options
    opened = open_model(card.architecture, load_tensors(card), options, torch.float32, torch.device("cpu"))
    reader, tokens = Reader(opened, card.architecture, SIZE, BLOCK_SIZE, retention), token_ids(card)
    with torch.inference_mode():
        reader.step(tokens[::-1][:100])
        reader.start()
        return torch.cat([reader.step(tokens[at : at + chunk]) for at in range(0, SIZE, chunk)])


def predict(oracle: Any, card: ModelCard, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """With a mask [n, n]: logits [n, V], and what each query's heads attend to in all layers [n, n]."""
    tokens = torch.tensor([token_ids(card)[: len(hidden)]])
    with torch.inference_mode():
        out = oracle(tokens, attention_mask=hidden[None, None], output_attentions=True)
    return out.logits[0], torch.stack(out.attentions).sum((0, 1, 2))


def causal(size: int) -> Tensor:
    return torch.full((size, size), HIDDEN).triu(1)


@pytest.mark.parametrize("chunk", [16, 40])
def test_a_reader_predicts_what_transformers_does(card: ModelCard, oracle: Any, chunk: int) -> None:
    expected, _ = predict(oracle, card, causal(SIZE))
    torch.testing.assert_close(read(card, KEEP_ALL, chunk), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("chunk", [8, 16])
def test_sinks_and_window_hide_what_lies_between(card: ModelCard, oracle: Any, chunk: int) -> None:
    retention = Setting("fp32", kv_eviction="sink_window", kv_budget=96).retention(SIZE)
    query, key = torch.arange(SIZE)[:, None], torch.arange(SIZE)[None]
    is_hidden = (key >= BLOCK_SIZE) & (key <= query - (96 - BLOCK_SIZE))
    expected, _ = predict(oracle, card, causal(SIZE).masked_fill(is_hidden, HIDDEN))
    torch.testing.assert_close(read(card, retention, chunk), expected, rtol=1e-3, atol=1e-3)


def test_heavy_hitters_are_the_blocks_attended_to_most(card: ModelCard, oracle: Any) -> None:
    retention = Setting("fp32", kv_eviction="heavy_hitter", kv_budget=96).retention(SIZE)
    found = read(card, retention, BLOCK_SIZE)
    hidden, mass = causal(SIZE), torch.zeros(SIZE // BLOCK_SIZE)
    kept: list[int] = []  # blocks of the sequence
    for number in range(SIZE // BLOCK_SIZE):
        kept.append(number)
        end = (number + 1) * BLOCK_SIZE
        rows = slice(end - BLOCK_SIZE, end)
        logits, attention = predict(oracle, card, hidden[:end, :end])
        torch.testing.assert_close(found[rows], logits[rows], rtol=1e-3, atol=1e-3)
        mass[: number + 1] += attention[rows].view(BLOCK_SIZE, -1, BLOCK_SIZE).sum((0, 2))
        if len(kept) * BLOCK_SIZE > 96:
            least = min(kept[1:-2], key=lambda block: float(mass[block]))  # a block of sinks, two latest ones
            kept.remove(least)
            hidden[end:, least * BLOCK_SIZE : (least + 1) * BLOCK_SIZE] = HIDDEN
    assert kept != [0, *range(11, 16)], "that would be a window"
