"""What the cache gives back of a number: by attention over one entry, whose weight is 1."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipeline.gpu.host.library import HostLibrary
from pipeline.gpu.kv.dtype import GROUP, MAX_CODE, KvDtype
from pipeline.gpu.reference.quantise import dequantise, quantise
from tests.gpu.host import kernels
from tests.gpu.host.kernels import Floats

QUANTISED: tuple[KvDtype, ...] = ("int8", "fp8", "int4")
LAST_BITS = {"rtol": 3e-7, "atol": 0.0}
"""Of exp(0), by which the entry is weighed and divided; codes differ by far more."""
few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def through_the_cache(library: HostLibrary, x: Floats, kv_dtype: KvDtype) -> Tensor:
    """[T, H, D], stored as values one a sequence, and read."""
    num_rows, num_heads, head_dim = x.shape
    cache = kernels.new_cache(num_rows, 16, num_heads, head_dim, kv_dtype)
    kernels.write_kv(library, cache, x, x, np.arange(num_rows) * 16)
    q = np.zeros(x.shape, np.uint16)
    starts, lens = np.arange(num_rows + 1, dtype=np.int32), np.ones(num_rows, np.int32)
    blocks = np.arange(num_rows, dtype=np.int32)[:, None]
    return torch.from_numpy(kernels.attention(library, cache, q, starts, lens, blocks))


def groups(x: Tensor, kv_dtype: KvDtype) -> Tensor:
    """[..., D] -> the largest size in each element's group."""
    width = GROUP if kv_dtype == "int4" else x.shape[-1]
    parts = x.abs().split(width, -1)
    return torch.cat([part.amax(-1, keepdim=True).expand_as(part) for part in parts], -1)


@given(
    dim=st.sampled_from([16, 64, 80, 96, 128, 256]),
    heads=st.integers(1, 3),
    scale=st.sampled_from([1e-6, 1.0, 3e4]),
    spread=st.sampled_from([0.1, 1.0, 4.0]),
    kv_dtype=st.sampled_from(QUANTISED),
    seed=st.integers(0, 999),
)
@few
def test_every_element_is_that_of_torch_and_near_what_was_stored(
    library: HostLibrary, dim: int, heads: int, scale: float, spread: float, kv_dtype: KvDtype, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    sizes = np.exp(spread * rng.normal(size=(5, heads, dim)))
    x = (scale * sizes * rng.choice([-1, 0, 1], p=[0.45, 0.1, 0.45], size=sizes.shape)).astype("f")
    x[0] = 0
    found, exact = through_the_cache(library, x, kv_dtype), torch.from_numpy(x)
    torch.testing.assert_close(found, dequantise(quantise(exact, kv_dtype), dim, kv_dtype), **LAST_BITS)
    largest_scale = groups(exact, kv_dtype) * (1 + 2**-7) / MAX_CODE[kv_dtype]
    of_fp8 = torch.maximum(exact.abs() / 16, largest_scale / 1024)
    bound = of_fp8 if kv_dtype == "fp8" else largest_scale / 2
    assert ((found - exact).abs() <= bound * (1 + 1e-6)).all()


@pytest.mark.parametrize("kv_dtype", QUANTISED)
def test_keys_are_stored_as_values_are(library: HostLibrary, kv_dtype: KvDtype) -> None:
    """One score a key, of a query that picks one element: its probability says what was stored."""
    rng, dim = np.random.default_rng(3), 80
    keys, picked = rng.normal(size=(2, 1, dim)).astype("f"), 37
    cache = kernels.new_cache(1, 16, 1, dim, kv_dtype)
    values = np.zeros((2, 1, dim), np.float32)
    values[1] = MAX_CODE[kv_dtype]  # so that the scale is 1
    kernels.write_kv(library, cache, keys, values, np.arange(2))
    q = np.zeros((1, 1, dim), np.float32)
    q[0, 0, picked] = 1
    out = kernels.attention(
        library,
        cache,
        kernels.to_bf16(q),
        np.array([0, 1], np.int32),
        np.array([2], np.int32),
        np.zeros((1, 1), np.int32),
    )
    first, second = dequantise(quantise(torch.from_numpy(keys[:, 0]), kv_dtype), dim, kv_dtype)[:, picked]
    share = torch.sigmoid((second - first) * dim**-0.5)
    assert abs(out[0, 0, 0] / MAX_CODE[kv_dtype] - share) < 2**-9


def test_e4m3_is_that_of_torch(library: HostLibrary) -> None:
    """Every code, every tie, and their neighbours in fp32; a head whose largest is 448 has scale 1."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    ties = (codes[1:] + codes[:-1]) / 2
    sizes = np.concatenate((codes, ties, np.nextafter(ties, 0), np.nextafter(ties, np.float32(500))))
    x = np.resize(np.concatenate((sizes, -sizes)), (70, 1, 16)).astype("f")
    x[:, :, 15] = 448
    expected = torch.from_numpy(x).to(torch.float8_e4m3fn).float()
    torch.testing.assert_close(through_the_cache(library, x, "fp8"), expected, **LAST_BITS)


@pytest.mark.parametrize("kv_dtype", QUANTISED)
def test_tokens_that_share_bytes_do_not_disturb_one_another(library: HostLibrary, kv_dtype: KvDtype) -> None:
    """In any order of writing, and over what was there before."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(32, 2, 80)).astype("f")
    caches = []
    for order in (np.arange(32), rng.permutation(32)):
        cache = kernels.new_cache(2, 16, 2, 80, kv_dtype)
        kernels.write_kv(library, cache, -2 * x, 3 * x, order)
        kernels.write_kv(library, cache, x[order], x[order], order)
        caches.append(cache)
    assert np.array_equal(caches[0].keys, caches[1].keys)
    assert np.array_equal(caches[0].values, caches[1].values)
