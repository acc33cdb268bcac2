"""Prefill attention against attention in fp64 over the same stored keys and values."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from pipeline.gpu.kv.dtype import KvDtype
from tests.kernels.heads import EXACT, MODELS
from tests.kernels.isolated import isolated
from tests.kernels.prefilling import Case, Row, Step, any_case, parts

WINDOWS = [Row(5, 60, 3, 7), Row(33, 33, 0, 5), Row(2, 90, 10, 20), Row(17, 99, 64, 1), Row(36, 70, 20, 33)]


@pytest.mark.parametrize("model", MODELS)
@isolated
def test_heads_of_the_models(model: str) -> None:
    heads, kv_heads, head_dim = MODELS[model]
    rows = [Row(3, 40)] if kv_heads == 8 else [Row(5, 5), Row(12, 40)]
    Step(Case(rows, heads, kv_heads, head_dim, "bf16", "bfloat16")).check()


@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16", "int8", "fp8", "int4"])
@isolated
def test_kv_dtypes(kv_dtype: KvDtype) -> None:
    rows = [Row(9, 50), Row(2, 17)]
    Step(Case(rows, 2, 1, kv_dtype=kv_dtype)).check()
    Step(Case(rows, 2, 1, head_dim=80, kv_dtype=kv_dtype, dtype="bfloat16")).check()


@isolated
def test_padding_and_rows_with_one_query_are_left_alone() -> None:
    rows = [Row(1, 40), Row(3, 0), Row(33, 50), Row(0, 0), Row(1, 1), Row(2, 2), Row(1, 0), Row(0, 0)]
    Step(Case(rows, kv_dtype="int8")).check()
    Step(Case([Row(2, 0)])).check()


@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128])
@isolated
def test_block_sizes_at_their_boundaries(block_size: int) -> None:
    rows = [Row(3, block_size - 1), Row(4, block_size), Row(2, block_size + 1)]
    Step(Case(rows, 2, 1, block_size=block_size)).check()


@pytest.mark.parametrize("num_queries", [15, 16, 17, 33])
@isolated
def test_tiles_at_their_boundaries(num_queries: int) -> None:
    rows = [Row(num_queries, num_queries + 16)]
    Step(Case(rows, 2, 1, tile_rows=32, tile_keys=16)).check()


@isolated
def test_windows_and_sinks_of_rows_and_layers() -> None:
    case = Case(WINDOWS, 2, 1, has_windows=True)
    Step(case).check()
    Step(replace(case, layer_window=30, kv_dtype="int4")).check()
    Step(replace(case, layer_window=30, has_windows=False, tile_keys=16)).check()


@isolated
def test_what_a_window_hides_is_not_read() -> None:
    step = Step(Case([Row(4, 150, 16, 20)], 2, 1, has_windows=True))
    hidden = step.paged.block_tables[0, 2:6].long()  # tiles have two blocks
    step.paged.cache.kv.k[hidden], step.paged.cache.kv.v[hidden] = torch.nan, torch.nan
    step.check()


@isolated
def test_bits_do_not_depend_on_neighbours_nor_on_chunks() -> None:
    case = Case(WINDOWS[:1:-1], 2, 1, kv_dtype="int8", dtype="bfloat16", has_windows=True)
    out, lse = Step(case).attend()
    begin = 0
    for step in parts(case, 0, [2, 19]):
        part, its_lse = step.attend()
        end = begin + len(part)
        assert part.equal(out[begin:end])
        assert its_lse.equal(lse[begin:end])
        begin = end
    assert begin == case.rows[0].num_queries


@isolated
def test_lse_is_the_logarithm_of_the_sum() -> None:
    step = Step(Case([Row(20, 45)], 2, 1))
    keys = step.paged.keys[0].double().expand(-1, 2, -1)
    scores = torch.einsum("qhd,nhd->hqn", step.q.double(), keys) * step.scale
    is_seen = step._is_seen(step.case.rows[0])
    expected = scores.masked_fill(~is_seen, -torch.inf).logsumexp(-1).T
    torch.testing.assert_close(step.attend()[1].double(), expected, **EXACT)


@isolated
def test_the_default_tiles_and_no_mass() -> None:
    from pipeline.gpu.kernels.attention_prefill import attention_prefill

    for dtype in ("float32", "bfloat16"):
        step = Step(Case([Row(50, 70)], 2, 1, kv_dtype="bf16", dtype=dtype))
        out, inputs = torch.full_like(step.q, torch.nan).contiguous(), step.inputs(step.no_mass())
        inputs = replace(inputs, mass=None)
        assert attention_prefill(step.q, step.paged.cache, inputs, out, step.scale) is None
        torch.testing.assert_close(out, step.attend()[0], **step.case.tolerance)


@isolated
def test_it_is_the_reference() -> None:
    from pipeline.gpu.reference.ops import TorchOps

    step = Step(Case(WINDOWS[-2:], has_windows=True))
    inputs = step.inputs(step.no_mass())
    ops = TorchOps(torch.device("cpu"), 16, "fp32")
    kv = type(step.paged.cache.kv)(*(x.nan_to_num(0).transpose(0, 1) for x in step.paged.cache.kv))
    out = ops.attention(step.q.contiguous(), kv, ops.plan_attention(inputs), step.scale)
    torch.testing.assert_close(step.attend()[0].flatten(1), out, **EXACT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 24}, "no power of two"),
        ({"heads": 3}, "3 heads of 64 over 2"),
        ({"head_dim": 512}, "4 heads of 512"),
        ({"heads": 34, "kv_heads": 1}, "34 heads of 64 over 1"),
    ],
)
@isolated
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Step(Case([Row(2, 5)], **change)).attend()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(60))
@isolated
def test_any_step(seed: int) -> None:
    Step(any_case(random.Random(seed))).check()
