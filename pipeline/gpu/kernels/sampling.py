"""Logits to token ids: greedy, temperature, top-k, top-p, seeded; no vocabulary is sorted.

logits [R, V], bf16 or fp32, rows of any stride; the columns [R] of gpu.sampling.SamplingRows; out [R] int64.
The same choices as SamplingOp, up to the rounding of sums: a filtered row draws among its first tokens in
order of (logit falling, id rising), any other by id, with the number of gpu.noise, bit for bit.

What a filter keeps is all tokens whose logit is above a threshold, and the first few of those equal to it. A
threshold is found from the top down, two bits of the logit's order-preserving integer (16 bits of bf16, 32
of fp32) in a pass over the row: the largest whose tokens from there up have a count (top-k) or a mass (top-p,
the draw) that is wanted. A pass keeps three sums in each lane, so nothing is reduced before its end.
Passes over a row: greedy 1; unfiltered 3; filtered 3, and 8 (bf16) or 16 (fp32) for each threshold, with
top-k one more. A row of 128 Ki bf16 logits is 256 KiB, so what a step reads again comes from L2. About 6
flops a logit and pass.

A row is one program, whose sums have one order whatever is beside it. Rows whose logits are all -inf get the
lowest id. Tokens more than DEPTH times the temperature below the best, exp(-DEPTH) as probable, are never
drawn of a filtered row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.gpu.kernels.finding import Find, LaunchConfig, find_config, keep_default
from pipeline.gpu.kernels.penalties import penalise
from pipeline.gpu.kernels.token_mask import mask_tokens
from pipeline.gpu.kernels.variant import ModelShape, Variant
from pipeline.gpu.logit_rules import LogitRules
from pipeline.gpu.sampling import SamplingOp, SamplingRows

DEFAULT = LaunchConfig(num_warps=16, num_stages=2, constants={"BLOCK": 4096})
"""8 logits a thread are one load of 16 bytes in bf16, and three sums of each are 24 registers. A row has a
multiprocessor to itself, which at 16 warps has enough loads under way to hide L2."""

DEPTH = tl.constexpr(80.0)
NONE = tl.constexpr(2147483647)
UNROLL = tl.constexpr(2)
"""Loads of a thread under way in a pass that reduces nothing before its end."""


@triton.jit
def mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def uniform(seed, position):
    # gpu.noise.uniform: two int64 -> fp64 in [0, 1)
    start = mix(seed.to(tl.uint64, bitcast=True) + 0x9E3779B97F4A7C15)
    bits = mix(start + (position.to(tl.uint64, bitcast=True) + 1) * 0x9E3779B97F4A7C15)
    return (bits >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16  # 2^-53


@triton.jit
def key_of(x, KEY_BITS: tl.constexpr):
    # fp32 -> uint32 of the same order; bf16 values differ in the upper half alone
    bits = tl.where(x == 0.0, 0.0, x).to(tl.uint32, bitcast=True)  # -0 is 0
    flip = tl.where((bits >> 31) != 0, 0xFFFFFFFF, 0x80000000).to(tl.uint32)
    return (bits ^ flip) >> (32 - KEY_BITS)


@triton.jit
def value_of(key, KEY_BITS: tl.constexpr):
    wide = key << (32 - KEY_BITS)
    is_positive = (wide >> 31) != 0
    low = tl.full([], (1 << (32 - KEY_BITS)) - 1, tl.uint32)
    bits = tl.where(is_positive, wide ^ 0x80000000, (wide | low) ^ 0xFFFFFFFF).to(tl.uint32)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def best_of(row_ptr, V, BLOCK: tl.constexpr):
    """The best logit and the lowest id that has it."""
    lanes = tl.arange(0, BLOCK)
    values = tl.full([BLOCK], float("-inf"), tl.float32)
    ids = tl.full([BLOCK], NONE, tl.int32)
    for start in tl.range(0, V, BLOCK, loop_unroll_factor=UNROLL):
        x = tl.load(row_ptr + start + lanes, mask=start + lanes < V, other=float("-inf")).to(tl.float32)
        ids = tl.where(x > values, start + lanes, ids)
        values = tl.maximum(values, x)
    peak = tl.max(values, 0)
    best = tl.min(tl.where(values == peak, ids, NONE), 0)
    return peak, tl.where(best == NONE, 0, best)  # all are -inf


@triton.jit
def weights_from(x, peak, temperature):
    return tl.exp((x - peak) / temperature)


@triton.jit
def sums_from(
    row_ptr, a, b, c, peak, temperature, IS_COUNT: tl.constexpr, V, BLOCK: tl.constexpr,
    KEY_BITS: tl.constexpr,
):  # fmt: skip
    """Of the tokens from each of the keys up: how many, or their weights. fp64."""
    lanes = tl.arange(0, BLOCK)
    sum_a = tl.zeros([BLOCK], tl.float32)
    sum_b = tl.zeros([BLOCK], tl.float32)
    sum_c = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, V, BLOCK, loop_unroll_factor=UNROLL):
        x = tl.load(row_ptr + start + lanes, mask=start + lanes < V, other=float("-inf")).to(tl.float32)
        key = key_of(x, KEY_BITS)
        weight = tl.full([BLOCK], 1.0, tl.float32) if IS_COUNT else weights_from(x, peak, temperature)
        sum_a += tl.where(key >= a, weight, 0.0)
        sum_b += tl.where(key >= b, weight, 0.0)
        sum_c += tl.where(key >= c, weight, 0.0)
    return (
        tl.sum(sum_a.to(tl.float64), 0),
        tl.sum(sum_b.to(tl.float64), 0),
        tl.sum(sum_c.to(tl.float64), 0),
    )


@triton.jit
def threshold(
    row_ptr, target, floor, peak, temperature, IS_STRICT: tl.constexpr, IS_COUNT: tl.constexpr,
    V, BLOCK: tl.constexpr, KEY_BITS: tl.constexpr,
):  # fmt: skip
    """The largest key from which up the sum is at least `target` (IS_STRICT: more), and the sum above it.
    Keys under `floor` do not count; 0: there is none.
    """
    key = tl.zeros([], tl.uint32)
    above = tl.zeros([], tl.float64)
    step = tl.full([], 1 << (KEY_BITS - 2), tl.uint32)
    for _ in range(KEY_BITS // 2):
        a, b, c = key + step, key + 2 * step, key + 3 * step
        sum_a, sum_b, sum_c = sums_from(
            row_ptr, tl.maximum(a, floor), tl.maximum(b, floor), tl.maximum(c, floor), peak, temperature,
            IS_COUNT, V, BLOCK, KEY_BITS,
        )  # fmt: skip
        if IS_STRICT:
            has_a, has_b, has_c = sum_a > target, sum_b > target, sum_c > target
        else:
            has_a, has_b, has_c = sum_a >= target, sum_b >= target, sum_c >= target
        above = tl.where(has_c, above, tl.where(has_b, sum_c, tl.where(has_a, sum_b, sum_a)))
        key = tl.where(has_c, c, tl.where(has_b, b, tl.where(has_a, a, key)))
        step = step >> 2
    return key, above


@triton.jit
def tie_of(row_ptr, key, rank, V, BLOCK: tl.constexpr, KEY_BITS: tl.constexpr):
    """Of the tokens with this key, in order of ids, number `rank`, else the last; -1: none has it."""
    lanes = tl.arange(0, BLOCK)
    begin = tl.zeros([], tl.int32)
    before = tl.zeros([], tl.int32)  # of `begin`
    num = tl.zeros([], tl.int32)
    for start in range(0, V, BLOCK):
        x = tl.load(row_ptr + start + lanes, mask=start + lanes < V, other=float("-inf")).to(tl.float32)
        is_tie = (key_of(x, KEY_BITS) == key) & (start + lanes < V)
        count = tl.sum(is_tie.to(tl.int32), 0)
        is_here = (count > 0) & (num <= rank)
        begin = tl.where(is_here, start, begin)
        before = tl.where(is_here, num, before)
        num += count
    ids = begin + lanes
    x = tl.load(row_ptr + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
    is_tie = (key_of(x, KEY_BITS) == key) & (ids < V)
    ranks = before + tl.cumsum(is_tie.to(tl.int32), 0) - 1
    return tl.max(tl.where(is_tie & (ranks <= rank), ids, -1), 0)


@triton.jit
def draw_first(
    row_ptr, noise, top_k, top_p, peak, temperature, V, BLOCK: tl.constexpr,
    KEY_BITS: tl.constexpr,
):  # fmt: skip
    """Among the top_k best, of which the fewest with top_p of the mass are kept."""
    floor = key_of(peak - DEPTH * temperature, KEY_BITS)
    everything, _, _ = sums_from(row_ptr, floor, floor, floor, peak, temperature, False, V, BLOCK, KEY_BITS)
    total = everything
    last = floor  # of it the first num_last tokens are kept, and all above
    num_last = tl.full([], NONE, tl.float64)  # all
    if top_k > 0:
        wanted = top_k.to(tl.float64)
        key, above = threshold(row_ptr, wanted, floor, peak, temperature, False, True, V, BLOCK, KEY_BITS)
        if key > 0:
            last, num_last = key, wanted - above
            mass, _, _ = sums_from(
                row_ptr, key + 1, key + 1, key + 1, peak, temperature, False, V, BLOCK, KEY_BITS
            )
            weight = weights_from(value_of(key, KEY_BITS), peak, temperature)
            total = mass + num_last * weight
    if top_p < 1.0:
        wanted = top_p.to(tl.float64) * total
        key, above = threshold(row_ptr, wanted, floor, peak, temperature, False, False, V, BLOCK, KEY_BITS)
        weight = weights_from(value_of(key, KEY_BITS), peak, temperature).to(tl.float64)
        num = tl.maximum(tl.ceil((wanted - above) / weight), 1.0)
        if key >= last:
            num_last = tl.where(key == last, tl.minimum(num, num_last), num)
            last = key
            total = above + num_last * weight
    target = noise * tl.minimum(total, everything)
    key, above = threshold(row_ptr, target, floor, peak, temperature, True, False, V, BLOCK, KEY_BITS)
    weight = weights_from(value_of(key, KEY_BITS), peak, temperature).to(tl.float64)
    rank = tl.minimum(tl.floor((target - above) / weight), NONE)
    rank = tl.where(key < last, num_last - 1, tl.where(key == last, tl.minimum(rank, num_last - 1), rank))
    return tie_of(row_ptr, tl.maximum(key, last), rank.to(tl.int32), V, BLOCK, KEY_BITS)


@triton.jit
def draw_any(row_ptr, noise, peak, temperature, V, BLOCK: tl.constexpr):
    """Among all, by id."""
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([], tl.float64)
    for start in range(0, V, BLOCK):
        x = tl.load(row_ptr + start + lanes, mask=start + lanes < V, other=float("-inf")).to(tl.float32)
        total += tl.sum(weights_from(x, peak, temperature), 0).to(tl.float64)
    target = noise * total
    passed = tl.zeros([], tl.float64)
    before = tl.zeros([], tl.float64)  # of `begin`
    begin = tl.zeros([], tl.int32)
    for start in range(0, V, BLOCK):
        x = tl.load(row_ptr + start + lanes, mask=start + lanes < V, other=float("-inf")).to(tl.float32)
        mass = tl.sum(weights_from(x, peak, temperature), 0).to(tl.float64)
        is_here = (mass > 0) & (passed <= target)
        begin = tl.where(is_here, start, begin)
        before = tl.where(is_here, passed, before)
        passed += mass
    ids = begin + lanes
    x = tl.load(row_ptr + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
    weight = weights_from(x, peak, temperature)
    left = (target - before).to(tl.float32)
    found = tl.min(tl.where((tl.cumsum(weight, 0) > left) & (weight > 0), ids, NONE), 0)
    return tl.where(found == NONE, tl.max(tl.where(weight > 0, ids, 0), 0), found)


@triton.jit
def sample_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    seed_ptr,
    position_ptr,
    out_ptr,
    stride,
    V,
    BLOCK: tl.constexpr,
    KEY_BITS: tl.constexpr,
):
    row = tl.program_id(0)
    row_ptr = logits_ptr + row.to(tl.int64) * stride
    temperature = tl.load(temperature_ptr + row)
    peak, best = best_of(row_ptr, V, BLOCK)
    chosen = best
    if (temperature > 0.0) & (peak > float("-inf")):
        noise = uniform(tl.load(seed_ptr + row), tl.load(position_ptr + row))
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        if (top_k > 0) | (top_p < 1.0):
            chosen = draw_first(row_ptr, noise, top_k, top_p, peak, temperature, V, BLOCK, KEY_BITS)
        else:
            chosen = draw_any(row_ptr, noise, peak, temperature, V, BLOCK)
        chosen = tl.where(chosen < 0, best, chosen)
    tl.store(out_ptr + row, chosen.to(tl.int64))


def sample(logits: Tensor, rows: SamplingRows, config: LaunchConfig | None = None) -> Tensor:
    """[R, V] -> [R] int64; the rows' rules are not looked at."""
    num_rows, vocab_size = logits.shape
    columns = (rows.temperature, rows.top_k, rows.top_p, rows.seed, rows.position)
    if logits.dtype not in (torch.bfloat16, torch.float32) or logits.stride(1) != 1:
        raise ValueError(f"no logits to sample of: {logits.dtype} of strides {list(logits.stride())}")
    if any(each.shape != (num_rows,) or each.stride(0) != 1 for each in columns):
        raise ValueError(f"{num_rows} rows, and columns of {[list(each.shape) for each in columns]}")
    config = config or find_config("sampling", DEFAULT, logits.device, vocab=vocab_size)
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    sample_kernel[(num_rows,)](
        logits,
        *columns,
        token_ids,
        logits.stride(0),
        vocab_size,
        **_constants(vocab_size, logits.dtype == torch.bfloat16, config),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return token_ids


class TritonSampler(SamplingOp):
    """SamplingOp with the same choices, up to the rounding of sums; waits for nothing. No class to derive
    from: its filter is in the kernel, and does not ask is_filtered and num_kept.
    """

    def choose(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        return sample(logits, rows)

    def apply_rules(self, rules: LogitRules, logits: Tensor, temperature: Tensor) -> Tensor:
        if rules.mask is not None:
            mask_tokens(logits, rules.mask)
        logits = rules.ban(logits)
        if rules.counted_at is not None:
            assert rules.counts is not None and rules.places is not None
            assert rules.repetition is not None and rules.frequency is not None
            assert rules.presence is not None
            penalties = (rules.repetition, rules.frequency, rules.presence)
            penalise(logits, rules.counted_at, rules.counts, rules.places, penalties)
        return rules.narrow(logits, temperature)


def _constants(vocab_size: int, is_bf16: bool, config: LaunchConfig) -> dict[str, int]:
    block = min(config.constants["BLOCK"], triton.next_power_of_2(vocab_size))
    return {"BLOCK": block, "KEY_BITS": 16 if is_bf16 else 32}


def variants(shape: ModelShape, find: Find = keep_default) -> list[Variant]:
    """Over the model's logits, and over those that rules have changed."""
    columns = {"temperature_ptr": "*fp32", "top_k_ptr": "*i64", "top_p_ptr": "*fp32", "seed_ptr": "*i64"}
    columns |= {"position_ptr": "*i64", "out_ptr": "*i64"}
    config = find("sampling", DEFAULT, vocab=shape.vocab_size)
    return [
        Variant(
            name=f"sampling {dtype}",
            kernel=sample_kernel,
            types={"logits_ptr": f"*{dtype}", **columns, "stride": "i32", "V": "i32"},
            constants=_constants(shape.vocab_size, dtype == "bf16", config),
            aligned=frozenset(("logits_ptr", *columns, "stride", "V")),
            config=config,
            max_registers=128,  # a row has a multiprocessor to itself: 16 warps of them
        )
        for dtype in ("bf16", "fp32")
    ]
