"""Decode attention against attention in fp64 over the same stored keys and values."""

import random
from typing import Any

import pytest
import torch

from pipeline.gpu.kv.dtype import KvDtype
from tests.kernels.decoding import Case
from tests.kernels.heads import EXACT, MODELS, ROUNDED
from tests.kernels.isolated import isolated

HEADS = MODELS | {"more than 16 heads": (20, 1, 64)}


@pytest.mark.parametrize("model", HEADS)
@isolated
def test_heads_of_the_models(model: str) -> None:
    heads, kv_heads, head_dim = HEADS[model]
    lens = [40] if kv_heads == 8 else [1, 16, 33, 70]
    case = Case(lens, heads, kv_heads, head_dim, kv_dtype="bf16", dtype="bfloat16")
    case.run().check(**ROUNDED)


@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16", "int8", "fp8", "int4"])
@isolated
def test_kv_dtypes(kv_dtype: KvDtype) -> None:
    lens = [17, 0, 65]
    Case(lens, kv_dtype=kv_dtype).run().check(**EXACT)
    Case(lens[::2], head_dim=80, kv_dtype=kv_dtype, dtype="bfloat16").run().check(**ROUNDED)


@isolated
def test_an_e4m3_of_any_bits_is_read() -> None:
    from pipeline.gpu.kernels.cache import scales_of

    codes = torch.arange(256).to(torch.uint8)[torch.arange(256) % 128 != 127]  # not NaN
    step = Case([254], 1, 1, 64, kv_dtype="fp8", block_size=8, split=256)
    made = step.run()
    cache, order = made.paged.cache, made.paged.block_tables[0].long()
    cache.kv.v[order[:32], 0, :512] = 0
    flat = cache.kv.v[order[:32], 0, :512].view(256, 64)
    flat[:254, 0] = codes
    cache.kv.v[order[:32], 0, :512] = flat.view(32, 512)
    scales_of(cache.kv.v)[order[:32], 0, 256:] = 1.0
    made.q.zero_()
    made.launch()
    mean = codes.view(torch.float8_e4m3fn).double()
    assert made.out[0, 0, 1:].count_nonzero() == 0
    torch.testing.assert_close(made.out[0, 0, 0].double(), mean.sum() / 254, rtol=1e-5, atol=1e-5)
    for at in (1, 7, 8, 130):  # subnormal, the largest of these, the least normal one, negative
        one = torch.zeros(256, 64, dtype=torch.uint8)
        one[:254, 0] = codes[at]
        cache.kv.v[order[:32], 0, :512] = one.view(32, 512)
        made.launch()
        torch.testing.assert_close(made.out[0, 0, 0].double(), mean[at], rtol=1e-6, atol=0)


@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128])
@isolated
def test_block_sizes_at_their_boundaries(block_size: int) -> None:
    lens = [block_size - 1, block_size, block_size + 1]
    Case(lens, 2, 1, block_size=block_size, has_mass=True, tile=32, split=32).run().check(**EXACT)


@isolated
def test_padding_and_rows_with_several_queries_are_left_alone() -> None:
    case = Case([40, 0, 50, 70, 3], num_queries=[1, 1, 3, 1, 2], kv_dtype="int8", has_mass=True)
    case.run().check(**EXACT)


@isolated
def test_windows_and_sinks_of_rows_and_layers() -> None:
    lens = [1, 33, 100, 150, 150, 150]
    case = Case(lens, 3, 1, sinks=[4, 0, 3, 33, 5, 0], windows=[0, 5, 40, 17, 160, 1], has_mass=True)
    case.run().check(**EXACT)
    case.layer_window, case.kv_dtype = 30, "int4"
    case.run().check(**EXACT)
    case.sinks = case.windows = None
    case.run().check(**EXACT)
    case.context_lens, case.kv_heads, case.layer_window, case.split = [66, 150], 1, 66, 32
    case.run().check(**EXACT)


@isolated
def test_what_a_window_hides_is_not_read() -> None:
    case = Case([150], 2, 1, sinks=[16], windows=[20])
    made = case.run()
    hidden = made.paged.block_tables[0, 1:8].long()
    made.paged.cache.kv.k[hidden], made.paged.cache.kv.v[hidden] = float("nan"), float("nan")
    made.launch()
    made.check(**EXACT)


@isolated
def test_a_row_has_the_same_bits_among_others_and_on_any_grid() -> None:
    from pipeline.gpu.kernels import attention_decode

    alone = Case([70], kv_dtype="bf16", dtype="bfloat16", tile=16, split=32).run()
    others = Case([70, 7, 100], kv_dtype="bf16", dtype="bfloat16", tile=16, split=32).run()
    assert others.paged.keys[0].equal(alone.paged.keys[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_decode, "MAX_PROGRAMS", 1)
        for step in (alone, others):
            step.q[0] = alone.q[0]
            before = step.out.clone() if step is alone else None
            step.launch()
            assert before is None or step.out.equal(before)
    assert others.out[0].equal(alone.out[0])
    assert not attention_decode._counters(alone.q.device, 0).any()


@isolated
def test_mass_is_that_of_the_reference() -> None:
    from pipeline.gpu.reference.ops import TorchOps

    made = Case([100, 37], kv_dtype="fp32", has_mass=True, sinks=[2, 0], windows=[50, 0]).run()
    inputs, assert_close = made.inputs(), torch.testing.assert_close
    assert inputs.mass is not None
    mass = inputs.mass.clone()
    ops = TorchOps(torch.device("cpu"), 16, "fp32")
    kv = type(made.paged.cache.kv)(*(x.nan_to_num(0).transpose(0, 1) for x in made.paged.cache.kv))
    inputs.mass.fill_(3)
    out = ops.attention(made.q.contiguous(), kv, ops.plan_attention(inputs), made.scale)
    assert_close(made.out.flatten(1), out, **EXACT)
    assert int((mass - inputs.mass).abs().max()) < 2**32 * 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 24}, "no power of two"),
        ({"heads": 3}, "3 heads of 64 over 2"),
        ({"head_dim": 512}, "4 heads of 512"),
    ],
)
@isolated
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case([5], **change).run()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(60))
@isolated
def test_any_step(seed: int) -> None:
    draw = random.Random(seed)
    kv_heads = draw.choice([1, 2, 3])
    num_rows = draw.randint(1, 4)
    has_windows = draw.random() < 0.5
    dtype = draw.choice(["float32", "bfloat16"])
    tile = draw.choice([16, 32, 64])
    Case(
        context_lens=[
            draw.choice([0, 1, draw.randint(1, 150), draw.randint(1, 300)]) for _ in range(num_rows)
        ],
        heads=kv_heads * draw.randint(1, 9),
        kv_heads=kv_heads,
        head_dim=draw.choice([64, 80, 96, 128, 256]),
        kv_dtype=draw.choice(["fp32", "bf16", "int8", "fp8", "int4"]),
        dtype=dtype,
        block_size=draw.choice([8, 16, 32, 64, 128]),
        num_queries=[draw.choice([1, 1, 1, 2]) for _ in range(num_rows)],
        sinks=[draw.choice([0, 4, 40]) for _ in range(num_rows)] if has_windows else None,
        windows=[draw.choice([0, 1, 30, 100]) for _ in range(num_rows)] if has_windows else None,
        layer_window=draw.choice([0, 0, 50]),
        has_mass=draw.random() < 0.5,
        split=tile * draw.choice([1, 2, 8]),
        tile=tile,
        seed=seed,
    ).run().check(**EXACT if dtype == "float32" else ROUNDED)
