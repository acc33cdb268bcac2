"""The sampling kernel against the torch op."""

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline.gpu.sampling import SamplingOp, SamplingRows
from tests.kernels.guarded import guarded
from tests.kernels.isolated import isolated


def rows_of(num_rows: int, seed: int) -> SamplingRows:
    """Greedy, plain and filtered ones mixed."""
    rng = np.random.default_rng(seed)
    vocab = 300
    return SamplingRows(
        guarded(torch.from_numpy(rng.choice([0.0, 1e-6, 0.4, 1.0, 2.0], num_rows).astype(np.float32))),
        guarded(torch.from_numpy(rng.choice([0, 0, 1, 3, 64, vocab, 10**6], num_rows))),
        guarded(torch.from_numpy(rng.choice([0.3, 0.9, 0.999, 1.0], num_rows).astype(np.float32))),
        guarded(torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, num_rows))),
        guarded(torch.from_numpy(rng.integers(0, 10_000, num_rows))),
    )


def logits_of(num_rows: int, vocab: int, seed: int, dtype: str) -> Tensor:
    """Both signs, ties in bf16, and some that are out."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, vocab, generator=generator) * 3
    logits[torch.rand(num_rows, vocab, generator=generator) < 0.05] = -torch.inf
    logits[:, 3] = -0.0
    return logits.to(getattr(torch, dtype))


MANY = pytest.mark.nightly


@pytest.mark.parametrize(
    ("num_rows", "vocab", "dtype", "seed"),
    [
        (8, 300, "bfloat16", 1),
        (3, 257, "float32", 5),
        pytest.param(40, 1023, "bfloat16", 2, marks=MANY),
        pytest.param(40, 511, "float32", 4, marks=MANY),
    ],
)
@isolated
def test_the_same_tokens_as_the_torch_op(num_rows: int, vocab: int, dtype: str, seed: int) -> None:
    from pipeline.gpu.kernels.config import LaunchConfig
    from pipeline.gpu.kernels.sampling import sample

    logits, rows = logits_of(num_rows, vocab, seed, dtype), rows_of(num_rows, seed)
    got = sample(guarded(logits), rows, LaunchConfig(constants={"BLOCK": 256}))
    assert got.tolist() == SamplingOp()(logits, rows).tolist()


@isolated
def test_ties_are_cut_and_drawn_by_id() -> None:
    from pipeline.gpu.kernels.sampling import sample

    num_rows = 8
    logits = torch.tensor([0.0, 2.0, 1.0, 2.0, 2.0, 1.0, -1.0, 2.0]).repeat(5)[None].expand(num_rows, -1)
    rows = SamplingRows(
        torch.ones(num_rows),
        torch.tensor([3, 7, 20, 25] * 2),
        torch.tensor([1.0, 0.5, 0.6, 0.9] * 2),
        torch.arange(num_rows),
        torch.arange(num_rows) * 3,
    )
    got = sample(logits.bfloat16(), rows).tolist()
    assert got == SamplingOp()(logits, rows).tolist()
    assert set(got[::4]) <= {1, 3, 4}


@isolated
def test_noise_is_bit_for_bit_that_of_torch() -> None:
    from pipeline.gpu.noise import uniform
    from tests.kernels.sample_noise import noise_kernel

    seeds = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 123456789, 42])
    positions = torch.tensor([0, 5, 2**40, 1, 0, 77, 2**62])
    out = torch.full((7,), torch.nan, dtype=torch.float64)
    noise_kernel[(7,)](seeds, positions, out)
    assert out.equal(uniform(seeds, positions))


@isolated
def test_a_row_without_any_token_gets_one() -> None:
    from pipeline.gpu.kernels.sampling import sample

    logits = torch.full((2, 40), -torch.inf)
    rows = SamplingRows(
        torch.tensor([0.0, 1.0]),
        torch.tensor([0, 5]),
        torch.tensor([1.0, 0.5]),
        torch.arange(2),
        torch.arange(2),
    )
    assert sample(logits, rows).tolist() == [0, 0]


@isolated
def test_shapes_that_do_not_fit() -> None:
    from pipeline.gpu.kernels.sampling import sample

    rows = rows_of(3, 1)
    with pytest.raises(ValueError, match="strides"):
        sample(torch.zeros(5, 3).t(), rows)
    with pytest.raises(ValueError, match="4 rows"):
        sample(torch.zeros(4, 5), rows)
