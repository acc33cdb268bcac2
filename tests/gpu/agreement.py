"""A family over the reference kernels against transformers, on random weights in fp32."""

import torch

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import build_runner
from tests.gpu.driver import TINY, Driver, KeepLogits, Sequence, random_tensors
from tests.gpu.oracle import hugging_face, logits_sync

FP32 = RunnerOptions(
    dtype="float32", device="cpu", backend="torch", num_blocks=160, block_size=8, max_num_seqs=8
)


def prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, TINY.vocab_size, (length,), generator=generator).tolist()


class Recorder:
    """A driver that keeps (sequence, number of tokens before, logits) of every sampled row."""

    def __init__(self, architecture: Architecture) -> None:
        self.keep = KeepLogits()
        self.driver = Driver(
            build_runner(architecture, random_tensors(architecture), FP32, lambda: self.keep)
        )
        self.rows: list[tuple[Sequence, int, torch.Tensor]] = []

    def step(self, rows: list[tuple[Sequence, int]]) -> None:
        for sequence, logits in zip(self.driver.step(rows), self.keep.last, strict=True):
            self.rows.append((sequence, len(sequence.token_ids) - 1, logits))


def check_mixed_steps(architecture: Architecture) -> None:
    """Prompts of 1 to 300 tokens in chunks beside decode rows: every row's logits and greedy token."""
    recorder = Recorder(architecture)
    a, b, c, d, e = (recorder.driver.add(prompt(length, length)) for length in (1, 5, 8, 130, 300))
    recorder.step([(a, 1), (b, 5), (c, 8)])
    recorder.step([(a, 1), (e, 100), (b, 1), (d, 127)])
    recorder.step([(d, 2), (c, 1), (e, 30)])
    recorder.step([(e, 169), (d, 1), (a, 1)])
    recorder.step([(e, 1), (d, 1), (c, 1), (b, 1), (a, 1)])
    assert len(recorder.rows) == 3 + 2 + 1 + 2 + 5
    model = hugging_face(architecture, random_tensors(architecture))
    for sequence in (a, b, c, d, e):
        length = len(sequence.token_ids) - len(sequence.output)
        expected = logits_sync(model, prompt(length, length) + sequence.output)
        assert expected[length - 1 : -1].argmax(-1).tolist() == sequence.output
        for owner, num_before, logits in recorder.rows:
            if owner is sequence:
                torch.testing.assert_close(logits, expected[num_before - 1], atol=2e-5, rtol=1e-5)
