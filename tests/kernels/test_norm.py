"""Norms against reference.ops, on views of every kind."""

import pytest
import torch
from torch import Tensor

from pipeline.gpu.reference.ops import TorchOps
from tests.kernels.guarded import guarded, poisoned_outputs
from tests.kernels.isolated import isolated

EPS = 1e-5


def reference() -> TorchOps:
    return TorchOps(torch.device("cpu"), 16, "bf16")


def random(*shape: int, dtype: str, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, dtype))


def assert_close(got: Tensor, expected: Tensor) -> None:
    """Within one rounding to bf16, or a few of fp32."""
    assert got.dtype == expected.dtype and got.is_contiguous()
    rtol = 2**-7 if got.dtype == torch.bfloat16 else 2e-6
    torch.testing.assert_close(got, expected, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("weight_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (3, 48), (2, 5376), (33, 64)])
@isolated
def test_norm(rows: int, width: int, dtype: str, weight_dtype: str) -> None:
    from pipeline.gpu.kernels.norm import add_rms_norm, rms_norm

    x, weight = random(rows, width, dtype=dtype, seed=1), random(width, dtype=weight_dtype, seed=2)
    residual, change = random(rows, width, dtype=dtype, seed=3), guarded(x)
    kept = guarded(residual)
    with poisoned_outputs():
        alone = rms_norm(guarded(x), guarded(weight), EPS)
        added = add_rms_norm(change, kept, guarded(weight), EPS)
    assert_close(alone, reference().rms_norm(x, weight, EPS))
    assert_close(added, reference().add_rms_norm(x, residual, weight, EPS))
    assert kept.equal(residual) and change.equal(x)


@pytest.mark.parametrize("head_dim", [16, 64, 96, 128, 256])
@isolated
def test_heads_in_the_middle_of_a_row(head_dim: int) -> None:
    from pipeline.gpu.kernels.norm import rms_norm

    qkv = random(5, 7 * head_dim, dtype="bfloat16", seed=4)
    weight = random(head_dim, dtype="bfloat16", seed=5)
    heads = guarded(qkv).view(5, 7, head_dim)[:, 3:6]
    with poisoned_outputs():
        got = rms_norm(heads, guarded(weight), EPS)
    assert_close(got, reference().rms_norm(qkv.view(5, 7, head_dim)[:, 3:6], weight, EPS))


@isolated
def test_rows_of_nothing_and_large_ones() -> None:
    from pipeline.gpu.kernels.norm import rms_norm

    x = torch.tensor([0.0, 1e-4, 3e4])[:, None].expand(3, 64).contiguous().bfloat16()
    weight = torch.ones(64, dtype=torch.bfloat16)
    assert_close(rms_norm(guarded(x), weight, EPS), reference().rms_norm(x, weight, EPS))


@isolated
def test_a_row_has_the_same_bits_alone() -> None:
    from pipeline.gpu.kernels.norm import rms_norm

    x, weight = random(67, 96, dtype="float32", seed=6), random(96, dtype="float32", seed=7)
    together = rms_norm(x, weight, EPS)
    for row in (0, 31, 66):
        assert rms_norm(x[row : row + 1], weight, EPS).equal(together[row : row + 1])


@isolated
def test_shapes_that_do_not_fit() -> None:
    from pipeline.gpu.kernels.norm import add_rms_norm, rms_norm

    x, weight = torch.zeros(4, 8), torch.zeros(8)
    with pytest.raises(ValueError, match=r"no norm of \[4, 8\] .* weight \[4\]"):
        rms_norm(x, torch.zeros(4), EPS)
    with pytest.raises(ValueError, match=r"strides \[1, 8\]"):
        rms_norm(torch.zeros(8, 8).t(), weight, EPS)
    with pytest.raises(ValueError, match="not of one kind"):
        add_rms_norm(x, torch.zeros(3, 8), weight, EPS)
