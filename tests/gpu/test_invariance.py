"""A request's logits have the same bits alone, among others, in any chunks and after a preemption."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.runner import RunnerOptions, build_runner
from pipeline.messages import SamplingParams
from tests.gpu.driver import Driver, KeepLogits, random_tensors

WIDE = Architecture(  # 2,048 inputs a row: where oneDNN sums a single row in another order
    family="llama",
    num_layers=2,
    hidden_size=192,
    intermediate_size=2048,
    num_heads=6,
    num_kv_heads=2,
    head_dim=32,
    vocab_size=997,
    max_position=1024,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    tie_embeddings=True,
)
NUM_TOKENS = 8
SEEDED = SamplingParams(temperature=0.8, top_p=0.9, seed=-5)


@dataclass
class Bench:
    driver: Driver
    op: KeepLogits

    def run(
        self, prompt: list[int], others: list[list[int]], chunk: int = 512, preempt_at: int | None = None
    ) -> tuple[Tensor, list[int]]:
        """Logits [NUM_TOKENS, V] and output of `prompt`, generated in the midst of the others."""
        sequences = [self.driver.add(tokens) for tokens in others]
        me = self.driver.add(prompt, SEEDED)
        sequences.insert(len(others) // 2, me)
        logits = []
        while rows := self.driver.next_rows([s for s in sequences if len(s.output) < NUM_TOKENS], chunk):
            sampled = self.driver.step(rows)
            if me in sampled:
                logits.append(self.op.last[sampled.index(me)])
            if len(me.output) == preempt_at and me.num_computed:
                self.driver.preempt(me)
                preempt_at = None
        for sequence in sequences:
            self.driver.remove(sequence)
        return torch.stack(logits), me.output


BACKENDS: dict[str, dict[str, Any]] = {
    "torch bf16": {"backend": "torch"},
    "torch fp32": {"dtype": "float32"},
    "host bf16": {"backend": "host", "weights": "bf16"},
    "host int8": {"backend": "host", "weights": "int8"},
    "host int8, blocks of 64": {"backend": "host", "weights": "int8", "block_size": 64},
    "host int8, 3 threads": {"backend": "host", "weights": "int8", "num_threads": 3},
    "host, int4 keys and values": {"backend": "host", "weights": "bf16", "kv_dtype": "int4"},
}


@pytest.fixture(scope="module", params=BACKENDS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    op = KeepLogits()
    options = RunnerOptions(device="cpu", num_blocks=800, max_num_seqs=16, **BACKENDS[request.param])
    before = torch.get_num_threads()
    yield Bench(Driver(build_runner(WIDE, random_tensors(WIDE), options, lambda: op)), op)
    torch.set_num_threads(before)


def tokens(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, WIDE.vocab_size, (length,), generator=generator).tolist()


@pytest.mark.parametrize("length", [1, 2, 16, 127, 128, 129, 300])
def test_same_bits_however_a_request_is_run(bench: Bench, length: int) -> None:
    prompt = tokens(length, length)
    others = [tokens(seed * 37 % 400 + 1, seed) for seed in range(1, 16)]
    logits, output = bench.run(prompt, [])
    assert len(logits) == NUM_TOKENS
    runs = {
        "in chunks of 16": bench.run(prompt, [], chunk=16),
        "in chunks of 7": bench.run(prompt, [], chunk=7),
        "among 15 others": bench.run(prompt, others),
        "among 15 others in chunks of 16": bench.run(prompt, others, chunk=16),
        "preempted": bench.run(prompt, [], preempt_at=NUM_TOKENS // 2),
        "preempted among others": bench.run(prompt, others, preempt_at=NUM_TOKENS // 2),
    }
    for how, (its_logits, its_output) in runs.items():
        assert its_output == output, how
        assert its_logits.equal(logits), how


def test_same_bits_one_token_at_a_time(bench: Bench) -> None:
    prompt = tokens(140, 1)
    logits, output = bench.run(prompt, [])
    its_logits, its_output = bench.run(prompt, [], chunk=1)
    assert its_output == output
    assert its_logits.equal(logits)
