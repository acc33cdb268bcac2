"""What comes back of quantised keys and values is as near as gpu.reference.quantise states."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from pipeline.gpu.kv.dtype import GROUP, MAX_CODE, KvDtype
from pipeline.gpu.reference.quantise import dequantise, quantise, round_up, row_bytes

TINY = 1e-35
"""Smaller than this, a scale is no normal number of fp32."""
SLACK = 1 + 2**-20
"""fp32's own rounding, on the way there and back."""

ELEMENTS = st.floats(-(2.0**99), 2.0**99, width=32).map(lambda x: x if abs(x) > TINY else 0.0)
ROWS = st.sampled_from([16, 32, 48, 64, 80, 128, 256]).flatmap(
    lambda head_dim: arrays(np.float32, (3, head_dim), elements=ELEMENTS)
)


def maxima(x: Tensor, kv_dtype: KvDtype) -> Tensor:
    """Of each element's group, [..., D]."""
    size = GROUP if kv_dtype == "int4" else x.shape[-1]
    groups = [group.abs().amax(-1, keepdim=True).expand_as(group) for group in x.split(size, -1)]
    return torch.cat(groups, -1)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "int4"])
@settings(max_examples=50, deadline=None)
@given(array=ROWS)
def test_the_error_is_as_stated(kv_dtype: KvDtype, array: np.ndarray) -> None:
    x = torch.from_numpy(array)
    rows = quantise(x, kv_dtype)
    assert rows.dtype == torch.uint8 and rows.shape == (3, row_bytes(x.shape[-1], kv_dtype))
    back, wide = dequantise(rows, x.shape[-1], kv_dtype).double(), x.double()
    scale = (1 + 2**-7) * maxima(wide, kv_dtype) / MAX_CODE[kv_dtype]
    allowed = torch.maximum(wide.abs() / 16, scale / 1024) if kv_dtype == "fp8" else scale / 2
    assert ((back - wide).abs() <= allowed * SLACK).all()


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "int4"])
def test_codes_that_are_exact_come_back_as_they_were(kv_dtype: KvDtype) -> None:
    levels = {"int8": torch.arange(-127.0, 128), "int4": torch.arange(-7.0, 8)}
    bytes_ = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    codes = levels.get(kv_dtype, bytes_[bytes_.isfinite()])
    x = torch.stack((codes, torch.full_like(codes, MAX_CODE[kv_dtype])), -1) * 0.25  # scale 1 / 4
    assert dequantise(quantise(x, kv_dtype), 2, kv_dtype).equal(x)


@given(x=st.floats(0, 2.0**127, width=32))
def test_a_scale_is_the_next_bf16(x: float) -> None:
    found = round_up(torch.tensor([x]))
    assert found.item() >= torch.tensor(x).item()
    below = (found.view(torch.int16) - 1).view(torch.bfloat16)
    assert found.item() == 0 or below.item() < torch.tensor(x).item()


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "int4"])
def test_a_row_does_not_depend_on_its_neighbours(kv_dtype: KvDtype) -> None:
    x = torch.randn(5, 3, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    alone = torch.stack([torch.stack([quantise(row, kv_dtype) for row in head]) for head in x])
    assert quantise(x, kv_dtype).equal(alone)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "int4"])
def test_zeros_and_what_was_never_written_are_zeros(kv_dtype: KvDtype) -> None:
    zeros = torch.zeros(2, 64)
    assert dequantise(quantise(zeros, kv_dtype), 64, kv_dtype).equal(zeros)
    empty = torch.zeros(2, row_bytes(64, kv_dtype), dtype=torch.uint8)
    assert (dequantise(empty, 64, kv_dtype) == 0).all()
