"""Paged attention against torch's scaled_dot_product_attention, sequence by sequence: any mixture of decode
rows, prompts and chunks, over blocks scattered in the cache.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from pipeline.gpu.host.library import HostLibrary
from tests.gpu.host.kernels import (
    Cache,
    Floats,
    Ints,
    Words,
    attention,
    from_bf16,
    new_cache,
    to_bf16,
    write_kv,
)

few = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

lengths = st.one_of(st.integers(1, 70), st.sampled_from([127, 128, 129, 255, 256, 257, 511, 512, 513, 700]))
rows = st.tuples(lengths, st.floats(0, 1)).map(lambda row: (max(1, round(row[0] * row[1])), row[0]))
"""(queries, context length)."""
heads = st.tuples(st.integers(1, 3), st.integers(1, 8))
"""(key/value heads, query heads of each)."""
dims = st.sampled_from([16, 64, 80, 96, 128, 256])
block_sizes = st.sampled_from([16, 32, 64, 128])


@dataclass
class Case:
    cache: Cache
    q: Words
    query_start: Ints
    context_lens: Ints
    block_tables: Ints
    keys: list[Floats]
    values: list[Floats]
    """Of each row, [context, Hkv, D], rounded to bf16."""


def make(
    library: HostLibrary,
    shape: list[tuple[int, int]],
    num_kv: int,
    group: int,
    dim: int,
    block_size: int,
    seed: int,
) -> Case:
    rng = np.random.default_rng(seed)
    columns = max(-(-context // block_size) for _, context in shape)
    tables = rng.permutation(len(shape) * columns + 1)[:-1].reshape(len(shape), columns).astype(np.int32)
    cache = new_cache(tables.size + 1, block_size, num_kv, dim)
    keys, values = [], []
    for table, (_, context) in zip(tables, shape, strict=True):
        k, v = (from_bf16(to_bf16(rng.normal(size=(context, num_kv, dim)).astype("f"))) for _ in range(2))
        position = np.arange(context)
        slots = table[position // block_size].astype(np.int64) * block_size + position % block_size
        write_kv(library, cache, k, v, slots)
        keys.append(k)
        values.append(v)
    counts = [queries for queries, _ in shape]
    q = to_bf16(2 * rng.normal(size=(sum(counts), num_kv * group, dim)).astype("f"))
    query_start = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return Case(cache, q, query_start, np.array([c for _, c in shape], np.int32), tables, keys, values)


def run(library: HostLibrary, case: Case, threads: int = 2) -> Floats:
    return attention(
        library, case.cache, case.q, case.query_start, case.context_lens, case.block_tables, threads
    )


def expected(case: Case) -> torch.Tensor:
    outputs = []
    for row, (k, v) in enumerate(zip(case.keys, case.values, strict=True)):
        q = from_bf16(case.q[case.query_start[row] : case.query_start[row + 1]])
        n, context = len(q), len(k)
        visible = torch.ones(n, context, dtype=torch.bool).tril(context - n)
        by_head = (torch.from_numpy(x).transpose(0, 1)[None] for x in (q, k, v))
        out = F.scaled_dot_product_attention(*by_head, attn_mask=visible, enable_gqa=True)
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)


@given(
    shape=st.lists(rows, min_size=1, max_size=5),
    heads=heads,
    dim=dims,
    block_size=block_sizes,
    seed=st.integers(0, 99),
)
@example([(1, 1)], (1, 1), 64, 16, 0)
@example([(1, 2000), (600, 600), (3, 300)], (3, 3), 64, 16, 1)
@few
def test_any_mixture_is_that_of_torch(
    library: HostLibrary,
    shape: list[tuple[int, int]],
    heads: tuple[int, int],
    dim: int,
    block_size: int,
    seed: int,
) -> None:
    case = make(library, shape, *heads, dim, block_size, seed)
    # probabilities are bf16 when they meet the values: 2^-9 of values of size 1
    torch.testing.assert_close(torch.from_numpy(run(library, case)), expected(case), atol=2e-2, rtol=0)


@pytest.mark.parametrize("group", [9, 16, 20])
def test_groups_of_more_heads_than_a_tile(library: HostLibrary, group: int) -> None:
    case = make(library, [(5, 40), (1, 300)], 2, group, 32, 16, group)
    torch.testing.assert_close(torch.from_numpy(run(library, case)), expected(case), atol=2e-2, rtol=0)


@given(context=lengths, heads=heads, dim=dims, threads=st.integers(1, 5), seed=st.integers(0, 99))
@few
def test_a_querys_bits_are_its_own(
    library: HostLibrary, context: int, heads: tuple[int, int], dim: int, threads: int, seed: int
) -> None:
    """The last position as a decode row is the last of the whole prompt, and of any number of threads."""
    whole = make(library, [(context, context), (1, 600)], *heads, dim, 16, seed)
    together = run(library, whole)
    alone = Case(
        whole.cache,
        np.ascontiguousarray(whole.q[context - 1 : context]),
        np.array([0, 1], np.int32),
        whole.context_lens[:1],
        np.ascontiguousarray(whole.block_tables[:1]),
        [],
        [],
    )
    assert np.array_equal(run(library, alone, threads)[0], together[context - 1])
