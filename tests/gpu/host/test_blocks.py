"""A GGUF's blocks in the kernels' panels: what they mean there, and linears over them."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf.quants import Q4_K, dequantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.gpu.host.formats import BLOCK_FORMATS
from pipeline.gpu.host.library import HostLibrary
from tests.gpu.host.gguf_rows import K_KINDS, KINDS, Bytes, random_rows
from tests.gpu.host.kernels import Floats, Packed, linear, new_packed, pack_blocks, padded
from tests.gpu.host.test_linear import by_group

few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
POWERS = np.ldexp(np.float16(1), np.arange(-20, 3)).astype(np.float16)
"""With these a K kind's products of scales are fp16 numbers."""


def packed_rows(
    library: HostLibrary, kind: Kind, rows: Bytes, inputs: int, bias: Floats | None = None
) -> Packed:
    packed = new_packed(library, inputs, [BLOCK_FORMATS[kind]] * (padded(len(rows), 32) // 32), bias)
    pack_blocks(library, packed, kind, rows, inputs)
    return packed


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_blocks_mean_what_they_meant_in_the_file(library: HostLibrary, kind: Kind) -> None:
    """To the last bit; subnormal and negative scales too."""
    rows, inputs = random_rows(kind, 45, 3, seed=1, scales=np.concatenate((POWERS, -POWERS)))
    found = packed_rows(library, kind, rows, inputs).unpacked(library)
    assert np.array_equal(found[:45], dequantize(rows, kind))
    assert not found[45:].any()


@pytest.mark.parametrize(
    "kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0], ids=lambda k: k.name
)
def test_any_scale_is_kept_where_a_block_has_one(library: HostLibrary, kind: Kind) -> None:
    rows, inputs = random_rows(kind, 33, 9, seed=2)
    assert np.array_equal(
        packed_rows(library, kind, rows, inputs).unpacked(library)[:33], dequantize(rows, kind)
    )


@pytest.mark.parametrize("kind", K_KINDS, ids=lambda kind: kind.name)
def test_scales_of_k_blocks_are_rounded_to_fp16(library: HostLibrary, kind: Kind) -> None:
    """By 2^-11 of each at most, which is an eighth of what bf16 rounds by."""
    rows, inputs = random_rows(kind, 32, 2, seed=3)
    found, expected = packed_rows(library, kind, rows, inputs).unpacked(library), dequantize(rows, kind)
    minima = np.zeros((32, inputs), np.float32)
    if kind != Kind.Q6_K:
        blocks = rows.reshape(64, -1)
        _, factors = Q4_K.get_scale_min(blocks[:, 4:16])
        minima = (
            (blocks[:, 2:4].copy().view(np.float16).astype("f") * factors).repeat(32, 1).reshape(32, inputs)
        )
    bound = 2.0**-11 * (np.abs(expected + minima) + np.abs(minima))
    assert (np.abs(found.astype("d") - expected) <= bound * 1.001).all()
    assert (found != expected).any()


@given(
    kind=st.sampled_from(KINDS),
    num_blocks=st.integers(1, 3),
    outputs=st.integers(1, 70),
    rows=st.integers(1, 128),
    has_bias=st.booleans(),
    seed=st.integers(0, 999),
)
@few
def test_a_linear_over_blocks(
    library: HostLibrary, kind: Kind, num_blocks: int, outputs: int, rows: int, has_bias: bool, seed: int
) -> None:
    """Against fp64, with the inputs rounded as the kernels round them: within 2^-19 of the terms' sizes."""
    rng = np.random.default_rng(seed)
    blocks, inputs = random_rows(kind, outputs, num_blocks, seed)
    x, bias = rng.normal(size=(rows, inputs)).astype("f"), rng.normal(size=outputs).astype("f") * has_bias
    packed = packed_rows(library, kind, blocks, inputs, bias if has_bias else None)
    w, rounded = packed.unpacked(library)[:outputs].astype("d"), by_group(x).astype("d")
    y = linear(library, packed, x)
    bound = 2.0**-19 * (np.abs(rounded).sum(1)[:, None] * np.abs(w).max(1) + np.abs(bias))
    assert (np.abs(y[:, :outputs] - (rounded @ w.T + bias)) <= bound).all()
    assert not y[:, outputs:].any()


@given(kind=st.sampled_from(KINDS), rows=st.integers(2, 128), seed=st.integers(0, 999))
@few
def test_a_rows_bits_are_its_own(library: HostLibrary, kind: Kind, rows: int, seed: int) -> None:
    blocks, inputs = random_rows(kind, 64, 4, seed)
    packed = packed_rows(library, kind, blocks, inputs)
    x = np.random.default_rng(seed).normal(size=(rows, inputs)).astype("f")
    together = linear(library, packed, x)
    for row in {0, rows // 2, rows - 1}:
        assert np.array_equal(linear(library, packed, x[row : row + 1])[0], together[row])


def test_panels_of_several_kinds_are_one_linear(library: HostLibrary) -> None:
    """As the parts of a Q4_K_M file's attention are."""
    kinds = (Kind.Q4_K, Kind.Q6_K, Kind.Q8_0)
    parts = [random_rows(kind, 32, 256 // 32 if kind == Kind.Q8_0 else 1, seed=5)[0] for kind in kinds]
    packed = new_packed(library, 256, [BLOCK_FORMATS[kind] for kind in kinds])
    for number, (kind, rows) in enumerate(zip(kinds, parts, strict=True)):
        pack_blocks(library, packed, kind, rows, 256, first=32 * number)
    x = np.random.default_rng(6).normal(size=(7, 256)).astype("f")
    alone = [
        linear(library, packed_rows(library, kind, rows, 256), x)
        for kind, rows in zip(kinds, parts, strict=True)
    ]
    assert np.array_equal(linear(library, packed, x), np.concatenate(alone, 1))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_extremes(library: HostLibrary, kind: Kind) -> None:
    """Largest and smallest quants against the largest inputs: where 16-bit products would saturate."""
    rows, inputs = random_rows(kind, 64, 8, seed=7, scales=np.array([1.0], np.float16))
    size = rows.shape[1] // 8
    for first, byte in ((0, 0x80), (32, 0x7F)):
        blocks = rows[first : first + 32].reshape(32, 8, size)
        blocks[:, :, {18: 2, 20: 4, 34: 2}.get(size, 16) : 192] = byte
    packed = packed_rows(library, kind, rows, inputs)
    x = np.stack([np.ones(inputs), -np.ones(inputs), np.zeros(inputs)]).astype("f")
    w = packed.unpacked(library).astype("d")
    np.testing.assert_allclose(
        linear(library, packed, x), by_group(x).astype("d") @ w.T, rtol=1e-5, atol=1e-2
    )
