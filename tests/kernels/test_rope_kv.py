"""Rotation and KV writes against reference: every byte of the cache, and what must not be touched."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipeline.gpu.kv.dtype import KvDtype, is_quantised
from pipeline.gpu.reference.ops import rope
from pipeline.gpu.reference.quantise import quantise
from tests.kernels.guarded import guarded
from tests.kernels.isolated import isolated
from tests.kernels.paged import empty_cache, stored_rows

KV_DTYPES: tuple[KvDtype, ...] = ("fp32", "bf16", "int8", "fp8", "int4")
BLOCK_SIZE, NUM_BLOCKS = 8, 5


def angles(num_tokens: int, head_dim: int) -> tuple[Tensor, Tensor]:
    angle = torch.arange(num_tokens)[:, None, None] * 3.7 + torch.linspace(0, 2, head_dim // 2)
    return angle.cos(), angle.sin()


def check_step(qkv: Tensor, num_heads: int, num_kv_heads: int, kv_dtype: KvDtype, slots: list[int]) -> None:
    """qkv [T, H + 2 Hkv, D]."""
    from pipeline.gpu.kernels.rope_kv import rope_and_write_kv

    num_tokens, _, head_dim = qkv.shape
    sizes = [num_heads, num_kv_heads, num_kv_heads]
    rotation = angles(num_tokens, head_dim)
    cache = empty_cache(NUM_BLOCKS, BLOCK_SIZE, num_kv_heads, head_dim, kv_dtype)
    before = [stored_rows(cache, side).clone() for side in cache.kv]
    mine = guarded(qkv)
    q, k, v = mine.split(sizes, dim=1)
    rope_and_write_kv(q, k, v, tuple(guarded(x) for x in rotation), cache, guarded(torch.tensor(slots)))
    expected_q, expected_k, expected_v = (part.clone() for part in qkv.split(sizes, dim=1))
    rope(expected_q, *rotation)
    rope(expected_k, *rotation)
    assert q.equal(expected_q)
    assert mine[:, num_heads:].equal(qkv[:, num_heads:])
    for stored, rows, expected in zip(cache.kv, (expected_k, expected_v), before, strict=True):
        new = quantise(rows, kv_dtype) if is_quantised(kv_dtype) else rows.to(stored.dtype)
        for token, slot in enumerate(slots):
            if slot >= 0:
                expected[slot // BLOCK_SIZE, :, slot % BLOCK_SIZE] = new[token]
        as_bytes = [x.contiguous().view(torch.uint8) for x in (stored_rows(cache, stored), expected)]
        assert as_bytes[0].equal(as_bytes[1])


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [(4, 2, 16), (9, 3, 64), (2, 1, 96), (10, 10, 128), (3, 1, 256)],
)
@isolated
def test_every_byte(num_heads: int, num_kv_heads: int, head_dim: int, kv_dtype: KvDtype) -> None:
    generator = torch.Generator().manual_seed(head_dim)
    for dtype in (torch.float32, torch.bfloat16):
        qkv = torch.randn(4, num_heads + 2 * num_kv_heads, head_dim, generator=generator).to(dtype)
        check_step(qkv, num_heads, num_kv_heads, kv_dtype, [17, -1, 0, 39])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.sampled_from(["int8", "fp8", "int4"]), st.integers(0, 2**31), st.integers(-30, 30))
def test_codes_of_numbers_of_every_size(kv_dtype: KvDtype, seed: int, exponent: int) -> None:
    check_numbers_of_every_size(kv_dtype=kv_dtype, seed=seed, exponent=exponent)


@isolated
def check_numbers_of_every_size(kv_dtype: KvDtype, seed: int, exponent: int) -> None:
    """Sizes that differ within a row, so that codes are large, small, ties and zero."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(-14, 3, (1, 6, 32), generator=generator)
    whole = torch.randint(-16, 17, (1, 6, 32), generator=generator)
    check_step(whole.float() * 2.0 ** (sizes + exponent), 2, 2, kv_dtype, [12])


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "int4"])
@isolated
def test_zeros_have_no_scale(kv_dtype: KvDtype) -> None:
    check_step(torch.zeros(1, 3, 64), 1, 1, kv_dtype, [9])


@isolated
def test_every_e4m3_between_two_and_their_ties() -> None:
    """All codes, and every number halfway between two, and its neighbours."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (codes[1:] + codes[:-1]) / 2
    up, down = (torch.nextafter(ties, torch.tensor(end)) for end in (1e9, -1e9))
    numbers = torch.cat((codes, ties, up, down)).split(255)
    step = torch.zeros(1, 1 + 2 * 4, 256)
    step[0, 5:, 0] = 448.0
    for head, part in enumerate(numbers):
        step[0, 5 + head, 1 : 1 + len(part)] = part
        step[0, 7 + head, 1 : 1 + len(part)] = -part
    check_step(step, 1, 4, "fp8", [7])


@isolated
def test_shapes_that_do_not_fit() -> None:
    from pipeline.gpu.kernels.rope_kv import rope_and_write_kv

    cache, slots = empty_cache(2, 8, 2, 16, "bf16"), torch.zeros(3, dtype=torch.int64)
    q, k = torch.zeros(3, 4, 16), torch.zeros(3, 2, 16)
    with pytest.raises(ValueError, match="beside queries"):
        rope_and_write_kv(q, k[:2], k, angles(3, 16), cache, slots)
    with pytest.raises(ValueError, match=r"\[3, 1, 8\]"):
        rope_and_write_kv(q, k, k, angles(2, 16), cache, slots)
    with pytest.raises(ValueError, match="a slot for each token"):
        rope_and_write_kv(q, k, k, angles(3, 16), cache, slots[:2])
