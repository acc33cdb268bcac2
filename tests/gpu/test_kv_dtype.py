"""kv_dtype: what the runner makes of it, and how near a quantised cache's logits are."""

from itertools import pairwise

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from pipeline.checkpoint.card import ModelCard
from pipeline.gpu.evaluation.evaluate import BLOCK_SIZE, Setting, open_setting
from pipeline.gpu.evaluation.reader import Reader
from pipeline.gpu.kv.dtype import KvDtype, block_bytes, token_bytes
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import build_runner
from tests.gpu.driver import TINY, random_tensors
from tests.gpu.test_model import TEXT

NUM_TOKENS = 400
MAX_RMS = 0.05
"""Of int8's logits against bf16's: of the standard deviation of these."""
MAX_KL = 0.01
"""And of the distributions, nats, on average."""


@pytest.mark.parametrize("backend", ["torch", "host"])
@pytest.mark.parametrize("kv_dtype", ["bf16", "int8", "fp8", "int4"])
def test_the_same_memory_holds_as_many_blocks_more(backend: str, kv_dtype: KvDtype) -> None:
    memory = 40 * block_bytes(TINY, 16, "bf16")
    options = RunnerOptions(device="cpu", backend=backend, kv_dtype=kv_dtype, kv_memory=memory)
    with capture_logs() as lines:
        runner = build_runner(TINY, random_tensors(TINY), options)
    num_blocks = memory // block_bytes(TINY, 16, kv_dtype)
    assert runner.capacity.num_blocks == num_blocks
    (line,) = [line for line in lines if line["event"] == "keys and values"]
    assert (line["kv_dtype"], line["bytes_a_token"]) == (kv_dtype, token_bytes(TINY, kv_dtype))
    assert (line["blocks"], line["tokens"]) == (num_blocks, 16 * num_blocks)
    held = sum(tensor.nbytes for layer in runner._kv_cache for tensor in layer)
    assert held == num_blocks * block_bytes(TINY, 16, kv_dtype), "the plan is what is taken"


@pytest.mark.model
def test_int8_logits_are_near_bf16s_on_the_real_model(model_card: ModelCard) -> None:
    expected, found = (read(model_card, Setting("bf16", kv)) for kv in ("bf16", "int8"))
    rms = (found - expected).square().mean().sqrt() / expected.std()
    assert 0 < rms < MAX_RMS
    expected, found = expected.log_softmax(-1), found.log_softmax(-1)
    assert (expected.exp() * (expected - found)).sum(-1).mean() < MAX_KL
    assert (expected.argmax(-1) == found.argmax(-1)).float().mean() > 0.9


def read(card: ModelCard, setting: Setting) -> Tensor:
    """[NUM_TOKENS, V] of a text, a chunk at a time and then a token at a time, as when it answers."""
    token_ids = card.new_tokenizer().encode(TEXT.read_text(), add_special_tokens=False).ids[:NUM_TOKENS]
    reader = Reader(open_setting(card, setting), card.architecture, NUM_TOKENS, BLOCK_SIZE)
    ends = [0, 128, 256, *range(384, NUM_TOKENS + 1)]
    with torch.inference_mode():
        steps = [reader.step(token_ids[start:end]) for start, end in pairwise(ends)]
    return torch.cat(steps)
