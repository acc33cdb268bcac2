"""Which bits a request's neighbours, chunks and preemptions leave alone on Triton's kernels, in the
interpreter (docs/decisions/0024)."""

import msgspec
import pytest
import torch
from torch import Tensor

from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import build_runner
from tests.gpu.driver import TINY, Driver, KeepLogits, random_tensors
from tests.kernels.isolated import isolated

SMALL = msgspec.structs.replace(TINY, num_layers=1, hidden_size=32, num_heads=3, num_kv_heads=1)
NUM_TOKENS = 3


def tokens(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, SMALL.vocab_size, (length,), generator=generator).tolist()


class Bench:
    def __init__(self) -> None:
        self.op = KeepLogits()
        options = RunnerOptions(
            device="cpu", dtype="float32", backend="triton", block_size=8, num_blocks=40, max_num_seqs=4
        )
        self.driver = Driver(build_runner(SMALL, random_tensors(SMALL), options, lambda: self.op))

    def logits(
        self, prompt: list[int], others: list[list[int]], chunk: int = 64, preempt_at: int = -1
    ) -> Tensor:
        """[NUM_TOKENS, V] of `prompt`, generated in the midst of the others."""
        sequences = [self.driver.add(tokens) for tokens in others]
        me = self.driver.add(prompt)
        sequences.insert(len(others) // 2, me)
        logits = []
        while rows := self.driver.next_rows([s for s in sequences if len(s.output) < NUM_TOKENS], chunk):
            sampled = self.driver.step(rows)
            if me in sampled:
                logits.append(self.op.last[sampled.index(me)])
            if len(me.output) == preempt_at and me.num_computed:
                self.driver.preempt(me)
                preempt_at = -1
        for sequence in sequences:
            self.driver.remove(sequence)
        return torch.stack(logits)


@isolated
def test_bits_depend_neither_on_neighbours_nor_on_chunks() -> None:
    bench, prompt = Bench(), tokens(20, 1)
    alone = bench.logits(prompt, [])
    assert bench.logits(prompt, [tokens(3, 2), tokens(9, 3)]).equal(alone)
    assert bench.logits(prompt, [], chunk=7).equal(alone)
    assert bench.logits(prompt, [tokens(1, 4)], chunk=18).equal(alone)


@pytest.mark.nightly
@isolated
def test_decode_and_prefill_agree_but_in_the_last_bits() -> None:
    """A token may be computed by either; what they give must not be equal for the text to be."""
    bench, prompt = Bench(), tokens(7, 5)
    alone = bench.logits(prompt, [])
    for found in (bench.logits(prompt, [], chunk=1), bench.logits(prompt, [], preempt_at=2)):
        torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-5)
        assert found.argmax(1).equal(alone.argmax(1))
