"""Embeddings on Triton's kernels, in the interpreter: those of the torch reference, in any chunks."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import build_runner
from tests.gpu.driver import Driver, random_tensors
from tests.kernels.isolated import isolated
from tests.kernels.test_model import BLOCK_SIZE, architecture, prompts


def embedded(backend: Any, pooling: Any, chunk: int) -> Tensor:
    """Of prompts of 3 and 11 tokens, beside one that generates: [2, C]."""
    shape = architecture("qwen3")
    options = RunnerOptions(
        device="cpu", dtype="float32", backend=backend, block_size=BLOCK_SIZE, num_blocks=20, max_num_seqs=3
    )
    driver = Driver(build_runner(shape, random_tensors(shape), options))
    talker, *asked = (driver.add(prompt) for prompt in prompts(5, [2, 3, 11], 0))
    for sequence in asked:
        sequence.pooling = pooling
    while rows := driver.next_rows([s for s in asked if s.embedding is None], chunk):
        driver.step([(talker, len(talker.token_ids) - talker.num_computed), *rows])
    return torch.stack([each.embedding for each in asked if each.embedding is not None])


@pytest.mark.parametrize("pooling", ["last", "mean"])
@isolated
def test_embeddings_are_those_of_the_reference(pooling: str) -> None:
    found = embedded("triton", pooling, 6)
    torch.testing.assert_close(found, embedded("torch", pooling, 11), atol=2e-6, rtol=1e-5)
