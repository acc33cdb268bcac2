"""Paged attention against a plain softmax in fp64: any mixture of decode rows, prompts and chunks, over
blocks scattered in a cache of every kind, with windows, sinks and the mass of each block.
"""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline.gpu.host.library import HostLibrary
from pipeline.gpu.kv.dtype import KvDtype
from tests.gpu.host.attention_cases import MASS_UNITS, Case, Row, Shape, alone, expected, make, run

few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

BOUND = 1e-2
"""Of a value's error. Probabilities are bf16 when they meet the values: 2^-9 of values of size 1 to 4."""
KV_DTYPES: tuple[KvDtype, ...] = ("bf16", "int8", "fp8", "int4")

lengths = st.one_of(st.integers(1, 70), st.sampled_from([127, 128, 129, 255, 256, 257, 511, 512, 513, 700]))
sinks = st.sampled_from([0, 1, 15, 16, 40, 300])
windows = st.one_of(st.just(0), st.integers(1, 40), st.sampled_from([128, 255, 256, 257, 600]))
rows = st.builds(
    lambda context, share, sinks, window: Row(
        max(1, round(min(context, 90) * share)), context, sinks, window
    ),
    lengths,
    st.floats(0, 1),
    sinks,
    windows,
)
shapes = st.builds(
    Shape,
    num_kv=st.integers(1, 2),
    group=st.integers(1, 8),
    dim=st.sampled_from([16, 64, 80, 96, 128, 256]),
    block_size=st.sampled_from([16, 32, 64, 128]),
    kv_dtype=st.sampled_from(KV_DTYPES),
)


def check(library: HostLibrary, case: Case) -> None:
    found, (values, mass) = run(library, case), expected(case)
    torch.testing.assert_close(found.double(), values, atol=BOUND, rtol=0)
    share = torch.from_numpy(case.mass).double() / MASS_UNITS
    torch.testing.assert_close(share, mass, atol=1e-4, rtol=1e-4)
    queries = torch.tensor([float(row.num_queries) for row in case.rows], dtype=torch.float64)
    torch.testing.assert_close(share.sum(1), queries * case.q.shape[1], atol=0, rtol=1e-6)


@given(
    shape=shapes,
    rows=st.lists(rows, min_size=1, max_size=4),
    layer_window=windows,
    soft_cap=st.sampled_from([0.0, 2.0, 50.0]),
    seed=st.integers(0, 99),
)
@example(Shape(), [Row(1, 1)], 0, 0.0, 0)
@example(Shape(3, 3), [Row(1, 2000), Row(300, 300), Row(3, 300)], 0, 0.0, 1)
@few
def test_any_mixture(
    library: HostLibrary, shape: Shape, rows: list[Row], layer_window: int, soft_cap: float, seed: int
) -> None:
    case = make(library, shape, rows, seed)
    case.layer_window, case.soft_cap = layer_window, soft_cap
    check(library, case)


@pytest.mark.parametrize("group", [9, 16, 20])
def test_groups_of_more_heads_than_a_tile(library: HostLibrary, group: int) -> None:
    check(library, make(library, Shape(2, group, 32), [Row(5, 40), Row(1, 300)], group))


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_a_long_context(library: HostLibrary, kv_dtype: KvDtype) -> None:
    check(library, make(library, Shape(1, 3, 64, 16, kv_dtype), [Row(2, 8192), Row(1, 8192, 16, 1000)]))


def test_many_rows(library: HostLibrary) -> None:
    contexts = np.random.default_rng(1).integers(1, 80, 128)
    rows = [Row(1, int(context), 4, int(context) % 3 * 16) for context in contexts]
    check(library, make(library, Shape(2, 3, 64, 16, "int8"), rows))


@given(
    shape=shapes,
    context=lengths,
    sinks=sinks,
    window=windows,
    layer_window=windows,
    threads=st.integers(1, 5),
    seed=st.integers(0, 99),
)
@few
def test_a_querys_bits_are_its_own(
    library: HostLibrary,
    shape: Shape,
    context: int,
    sinks: int,
    window: int,
    layer_window: int,
    threads: int,
    seed: int,
) -> None:
    """As a decode row it has the bits that it has in the whole prompt, and with any number of threads."""
    rows = [Row(context, context, sinks, window), Row(1, 600)]
    together = make(library, shape, rows, seed)
    together.layer_window = layer_window
    whole = run(library, together)
    for query in {0, context // 3, context - 1}:
        assert torch.equal(run(library, alone(together, 0, query), threads)[0], whole[query])


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_mass_is_the_same_sum_in_any_chunks_and_threads(library: HostLibrary, kv_dtype: KvDtype) -> None:
    together = make(library, Shape(2, 3, 32, 32, kv_dtype), [Row(40, 40, 3, 20), Row(30, 540, 40, 300)])
    run(library, together)
    for number, row in enumerate(together.rows):
        by_query = np.zeros_like(together.mass[number])
        for query in range(row.num_queries):
            case = alone(together, number, query)
            run(library, case, threads=1 + query % 3)
            by_query += case.mass[0]
        assert np.array_equal(by_query, together.mass[number])


@given(window=st.integers(1, 300), sinks=sinks, queries=st.integers(1, 20), seed=st.integers(0, 99))
@few
def test_what_no_query_sees_is_not_read(
    library: HostLibrary, window: int, sinks: int, queries: int, seed: int
) -> None:
    """A block that the sequence has dropped may belong to another by now."""
    row = Row(queries, 700, sinks, window)
    case = make(library, Shape(1, 2, 64, 16), [row], seed)
    before = run(library, case)
    hidden = case.block_tables[0, -(-sinks // 16) : max(0, row.context - queries + 1 - window) // 16]
    for part in (case.cache.keys, case.cache.values):
        part[hidden] = 0xFF  # NaN
    assert torch.equal(run(library, case), before)
