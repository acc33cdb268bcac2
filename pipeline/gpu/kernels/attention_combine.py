"""The end of decode attention: splits of a row are added up, and its blocks get their mass; no kernel of its
own, since the last program that has done a split of a row goes on with it (attention_decode).
"""

import triton
import triton.language as tl

from pipeline.gpu.kernels.seen import is_seen

ELEMENTS = tl.constexpr(4096)
"""Of partial results that are on their way at once."""
PARTS = tl.constexpr(64)
MASS_ONE = tl.constexpr(4294967296.0)
"""StepInputs.mass: what a query head's whole attention counts."""


@triton.jit
def combine(
    partial, lse, out, num_splits, HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the sum of a row's splits, in their order, for GROUP heads; ROWS is the next power of two.

    Args:
        partial: [splits, HEADS, D] fp32, and lse: [splits, HEADS], from the first of these heads on.
        out: [GROUP, D].
    """
    chunk: tl.constexpr = ELEMENTS // (ROWS * WIDTH) if ROWS * WIDTH < ELEMENTS else 1
    head = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    for first in range(0, num_splits, chunk):
        split = first + tl.arange(0, chunk)
        at = split[:, None] * HEADS + head[None, :]
        is_there = (split < num_splits)[:, None] & (head < GROUP)[None, :]
        weight = tl.load(lse + at, mask=is_there, other=float("-inf"))
        mask = is_there[:, :, None] & (column < D)[None, None, :]
        values = tl.load(partial + at[:, :, None] * D + column[None, None, :], mask=mask, other=0.0)
        new_maximum = tl.maximum(maximum, tl.max(weight, 0))
        new_maximum = tl.where(head < GROUP, new_maximum, 0.0)
        share = tl.exp2(weight - new_maximum[None, :])
        shrink = tl.exp2(maximum - new_maximum)
        total = total * shrink + tl.sum(share, 0)
        acc = acc * shrink[:, None] + tl.sum(values * share[:, :, None], 0)
        maximum = new_maximum
    total = tl.where(head < GROUP, total, 1.0)
    is_element = (head < GROUP)[:, None] & (column < D)[None, :]
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + head[:, None] * D + column[None, :], result, mask=is_element)


@triton.jit
def count_mass(
    mass, weights, lse, num_splits, context_len, num_sinks, window, num_parts, HEADS: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, PART: tl.constexpr, PARTS_OF_BLOCK: tl.constexpr,
):  # fmt: skip
    """Add to mass [blocks of the row's table] what GROUP heads have attended to. Whole numbers, each rounded
    by itself, so that the order of programs does not matter.

    Args:
        weights: [GROUP, num_parts], log2 of what PART entries each weigh; lse: [splits, HEADS], of splits.
    """
    head = tl.arange(0, ROWS)
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for split in range(num_splits):
        weight = tl.load(lse + split * HEADS + head, mask=head < GROUP, other=0.0)
        new_maximum = tl.maximum(maximum, weight)
        total = total * tl.exp2(maximum - new_maximum) + tl.exp2(weight - new_maximum)
        maximum = new_maximum
    whole = maximum + tl.log2(total)
    for first in range(0, tl.cdiv(context_len, PART), PARTS):
        part = first + tl.arange(0, PARTS)
        is_counted = is_seen(part * PART, PART, context_len, num_sinks, window)
        mask = (head < GROUP)[:, None] & is_counted[None, :]
        weight = tl.load(weights + head[:, None] * num_parts + part[None, :], mask=mask, other=float("-inf"))
        units = tl.floor(tl.exp2(weight - whole[:, None]) * MASS_ONE + 0.5).to(tl.int64)
        tl.atomic_add(mass + part // PARTS_OF_BLOCK, tl.sum(units, 0), mask=is_counted, sem="relaxed")
