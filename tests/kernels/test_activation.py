"""Gated activations against reference.ops."""

import pytest
import torch

from pipeline.gpu.reference.ops import TorchOps
from tests.kernels.guarded import guarded, poisoned_outputs
from tests.kernels.isolated import isolated


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_and_mul"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (3, 1024), (2, 1500)])
@isolated
def test_gate(rows: int, width: int, dtype: str, name: str) -> None:
    from pipeline.gpu.kernels import activation

    generator = torch.Generator().manual_seed(rows)
    x = (4 * torch.randn(rows, 2 * width, generator=generator)).to(getattr(torch, dtype))
    x[0, :4] = torch.tensor([-1e4, 1e4, 0.0, -90.0])
    with poisoned_outputs():
        got = getattr(activation, name)(guarded(x))
    expected = getattr(TorchOps(torch.device("cpu"), 16, "bf16"), name)(x)
    assert got.shape == (rows, width) and got.dtype == x.dtype
    rtol = 2**-7 if dtype == "bfloat16" else 1e-5
    torch.testing.assert_close(got, expected, rtol=rtol, atol=1e-5)


@isolated
def test_rows_with_a_stride_of_their_own() -> None:
    from pipeline.gpu.kernels.activation import silu_and_mul

    x = torch.randn(3, 40)
    assert silu_and_mul(x[:, 4:24]).equal(silu_and_mul(x[:, 4:24].contiguous()))
    with pytest.raises(ValueError, match=r"\[3, 5\]"):
        silu_and_mul(x[:, :5])
