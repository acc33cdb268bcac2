"""Packed linears against torch: odd shapes, biases, interleaved pairs, and the bits of a row."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from pipeline.gpu.host.library import HostLibrary
from tests.gpu.host.kernels import (
    GROUP,
    LANES,
    Floats,
    from_bf16,
    geglu,
    linear,
    pack,
    rows_of,
    swiglu,
    to_bf16,
)

few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
sizes = st.integers(1, 150)


def rounded(x: Floats, is_int8: bool) -> torch.Tensor:
    """What the kernel computes with: bf16, or int8 with a scale every GROUP inputs."""
    return torch.from_numpy(by_group(x) if is_int8 else from_bf16(to_bf16(x)))


def by_group(x: Floats) -> Floats:
    out = np.array(x, np.float32)
    for start in range(0, x.shape[1], GROUP):
        out[:, start : start + GROUP] = to_int8(x[:, start : start + GROUP])
    return out


def to_int8(x: Floats) -> Floats:
    """With the kernels' own fp32 arithmetic, so that no value is rounded the other way."""
    largest = np.abs(x).max(1, keepdims=True)
    inverse = np.divide(np.float32(127), largest, where=largest > 0, out=np.zeros_like(largest))
    return np.round(x * inverse) * (largest / np.float32(127))


@given(groups=st.integers(1, 40), rows=st.integers(1, 3), seed=st.integers(0, 999))
@few
def test_the_bits_of_quantised_rows(library: HostLibrary, groups: int, rows: int, seed: int) -> None:
    """Those of the formula in fp32, on every instruction set, for a group of zeros as well."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice([0, 1e-31, 1e-3, 1, 1e4], (rows, groups, 1))
    x = (rng.normal(size=(rows, groups, GROUP)) * sizes).astype("f")
    found = rows_of(library, x.reshape(rows, -1), is_int8=True)
    largest = np.abs(x).max(2)
    inverse = np.divide(np.float32(127), largest, where=largest > 1e-30, out=np.zeros_like(largest))
    codes = np.rint(x * inverse[:, :, None])
    assert np.array_equal(found.values, codes.reshape(rows, -1))
    assert np.array_equal(found.scales, largest / np.float32(127))
    assert np.array_equal(found.totals, found.scales * codes.sum(2))
    assert np.array_equal(found.sums, codes.reshape(rows, -1, LANES).sum(2))


def test_the_bits_of_rounded_rows(library: HostLibrary) -> None:
    """Normal numbers of every exponent, infinities and NaN; every second lies half-way between two bf16."""
    rng = np.random.default_rng(0)
    bits = rng.integers(1 << 23, 1 << 31, (40, 640)) | rng.integers(0, 2, (40, 640)) << 31
    bits[:, ::2] = bits[:, ::2] >> 16 << 16 | 0x8000
    x = bits.astype(np.uint32).view(np.float32)
    found = rows_of(library, x, is_int8=False).values
    assert np.array_equal(np.isnan(from_bf16(found)), np.isnan(x))
    assert np.array_equal(found[~np.isnan(x)], to_bf16(x)[~np.isnan(x)])


def weight_as_read(w: Floats, is_int8: bool) -> torch.Tensor:
    return torch.from_numpy(to_int8(w) if is_int8 else from_bf16(to_bf16(w)))


@pytest.mark.parametrize("is_int8", [False, True], ids=["bf16", "int8"])
@given(
    inputs=sizes, outputs=sizes, rows=st.integers(1, 128), has_bias=st.booleans(), seed=st.integers(0, 999)
)
@few
def test_a_linear_is_that_of_torch(
    library: HostLibrary, is_int8: bool, inputs: int, outputs: int, rows: int, has_bias: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    w, x = rng.normal(size=(outputs, inputs)).astype("f"), rng.normal(size=(rows, inputs)).astype("f")
    bias = rng.normal(size=outputs).astype("f") if has_bias else None
    y = linear(library, pack(library, [w], is_int8, bias), x)
    expected = F.linear(
        rounded(x, is_int8), weight_as_read(w, is_int8), None if bias is None else torch.from_numpy(bias)
    )
    torch.testing.assert_close(torch.from_numpy(y[:, :outputs]), expected, atol=1e-4, rtol=1e-4)
    assert not y[:, outputs:].any()


@pytest.mark.parametrize("is_int8", [False, True], ids=["bf16", "int8"])
@given(inputs=sizes, counts=st.lists(st.integers(1, 70), min_size=2, max_size=3), seed=st.integers(0, 999))
@few
def test_weights_lie_one_after_another(
    library: HostLibrary, is_int8: bool, inputs: int, counts: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.normal(size=(count, inputs)).astype("f") for count in counts]
    x = rng.normal(size=(3, inputs)).astype("f")
    together = linear(library, pack(library, parts, is_int8), x)[:, : sum(counts)]
    alone = [linear(library, pack(library, [w], is_int8), x)[:, : len(w)] for w in parts]
    assert np.array_equal(together, np.concatenate(alone, 1))


@pytest.mark.parametrize("is_int8", [False, True], ids=["bf16", "int8"])
@given(inputs=sizes, inner=sizes, rows=st.integers(1, 20), is_gelu=st.booleans(), seed=st.integers(0, 999))
@few
def test_a_gated_pair_is_that_of_torch(
    library: HostLibrary, is_int8: bool, inputs: int, inner: int, rows: int, is_gelu: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    gate, up = (rng.normal(size=(inner, inputs)).astype("f") for _ in range(2))
    x = rng.normal(size=(rows, inputs)).astype("f")
    y = (geglu if is_gelu else swiglu)(library, pack(library, [gate, up], is_int8, interleave=True), x)
    wide = rounded(x, is_int8)
    g, u = (F.linear(wide, weight_as_read(w, is_int8)) for w in (gate, up))
    activated = F.gelu(g, approximate="tanh") if is_gelu else F.silu(g)
    torch.testing.assert_close(torch.from_numpy(y[:, :inner]), activated * u, atol=1e-3, rtol=1e-3)
    assert not y[:, inner:].any()


@pytest.mark.parametrize("is_int8", [False, True], ids=["bf16", "int8"])
@given(rows=st.integers(2, 128), inputs=st.sampled_from([48, 576, 1100]), seed=st.integers(0, 999))
@few
def test_a_rows_bits_are_its_own(
    library: HostLibrary, is_int8: bool, rows: int, inputs: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    packed = pack(library, [rng.normal(size=(96, inputs)).astype("f")], is_int8)
    x = rng.normal(size=(rows, inputs)).astype("f")
    together = linear(library, packed, x)
    for row in {0, rows // 2, rows - 1}:
        assert np.array_equal(linear(library, packed, x[row : row + 1])[0], together[row])


@pytest.mark.parametrize("is_int8", [False, True], ids=["bf16", "int8"])
def test_extremes(library: HostLibrary, is_int8: bool) -> None:
    """All at the largest int8: where 16-bit products would saturate. And a row of zeros."""
    w = np.ones((40, 256), np.float32)
    x = np.stack([np.ones(256), -np.ones(256), np.zeros(256)]).astype("f")
    y = linear(library, pack(library, [w], is_int8), x)[:, :40]
    np.testing.assert_allclose(y, np.repeat([[256.0], [-256.0], [0.0]], 40, 1), rtol=1e-5)
