"""The real model against Hugging Face transformers, both in fp32 with the same dequantised weights."""

from pathlib import Path

import pytest
import torch

from pipeline.checkpoint.card import ModelCard
from pipeline.gpu.runner import RunnerOptions, load_runner
from pipeline.gpu.weights.load import load_tensors
from tests.gpu.driver import Driver, KeepLogits, Sequence
from tests.gpu.oracle import hugging_face

LENGTHS = (1, 2, 7, 16, 63, 128, 300, 777, 1100)
NUM_TOKENS = 32
TEXT = Path(__file__).parents[2] / "LICENSE"


@pytest.mark.nightly
@pytest.mark.model
def test_logits_and_greedy_tokens_are_those_of_transformers(model_card: ModelCard) -> None:
    prompts = real_prompts(model_card)
    sequences, logits = generate(model_card, prompts)
    model = hugging_face(model_card.architecture, load_tensors(model_card))
    for prompt, sequence in zip(prompts, sequences, strict=True):
        # token by token: its greedy choice after every prefix is ours, so its greedy text is ours
        with torch.inference_mode():
            inputs = torch.tensor([prompt + sequence.output[:-1]])
            expected = model(inputs, logits_to_keep=NUM_TOKENS).logits[0]
        torch.testing.assert_close(torch.stack(logits[sequence]), expected, atol=1e-3, rtol=0)
        assert expected.argmax(-1).tolist() == sequence.output


def real_prompts(card: ModelCard) -> list[list[int]]:
    ids = card.new_tokenizer().encode(TEXT.read_text(), add_special_tokens=False).ids
    return [ids[i * 50 : i * 50 + length] for i, length in enumerate(LENGTHS)]


def generate(
    card: ModelCard, prompts: list[list[int]]
) -> tuple[list[Sequence], dict[Sequence, list[torch.Tensor]]]:
    """All prompts together, greedily; and the logits of every token that was chosen."""
    keep = KeepLogits()
    options = RunnerOptions(dtype="float32", device="cpu", num_blocks=400)
    driver = Driver(load_runner(card, options, sampling_op=lambda: keep))
    sequences = [driver.add(prompt) for prompt in prompts]
    logits: dict[Sequence, list[torch.Tensor]] = {sequence: [] for sequence in sequences}
    while rows := driver.next_rows([s for s in sequences if len(s.output) < NUM_TOKENS], chunk=512):
        sampled = driver.step(rows)
        for sequence, row in zip(sampled, keep.last, strict=False):
            logits[sequence].append(row)
    return sequences, logits
