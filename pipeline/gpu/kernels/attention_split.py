"""Decode attention over one split of a row's context, tile by tile with a running maximum (Milakov and
Gimelshein 2018); no kernel of its own: attention_decode.
"""

import triton
import triton.language as tl

from pipeline.gpu.kernels.code_tile import load_codes, load_scales, widened
from pipeline.gpu.kernels.seen import tile_entries
from pipeline.gpu.kernels.stored_tile import head_blocks, load_tile

LEAST = tl.constexpr(1e-37)
"""In place of weights that are 0, whose logarithm is not finite."""


@triton.jit
def attend_split(
    q, k, v, k_scales, v_scales, table, weights, kv_head, begin, end, num_first, num_hidden, context_len,
    num_sinks, window, scale, num_parts, KV: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Of q [heads, WIDTH] over the row's seen tiles from begin to end: [heads, WIDTH], and log2 of the sum of
    exp2(score * scale), [heads]. What each PART of a block weighs goes to weights, [heads, num_parts].
    """
    num_heads: tl.constexpr = q.shape[0]
    maximum = tl.full([num_heads], float("-inf"), tl.float32)
    total = tl.zeros([num_heads], tl.float32)
    acc = tl.zeros([num_heads, WIDTH], tl.float32)
    entries, is_seen = tile_entries(begin, num_first, num_hidden, context_len, num_sinks, window, TILE)
    blocks = head_blocks(table, entries, is_seen, kv_head, KV_HEADS, BLOCK_SIZE)
    k_codes = load_codes(k, blocks, entries, is_seen, KV, D, WIDTH, BLOCK_SIZE)
    v_codes = load_codes(v, blocks, entries, is_seen, KV, D, WIDTH, BLOCK_SIZE)
    of_keys = load_scales(k_scales, blocks, entries, is_seen, KV, D, WIDTH, BLOCK_SIZE)
    of_values = load_scales(v_scales, blocks, entries, is_seen, KV, D, WIDTH, BLOCK_SIZE)
    for number in range(begin, end):
        # a tile ahead: the pipeline has stages for what is multiplied only, and would take one for block ids
        next_entries, next_is_seen = tile_entries(
            number + 1, num_first, num_hidden, context_len, num_sinks, window, TILE
        )
        next_blocks = head_blocks(table, next_entries, next_is_seen, kv_head, KV_HEADS, BLOCK_SIZE)
        if KV == "bf16" or KV == "fp32":
            keys = load_tile(k, blocks, entries, is_seen, q, D, WIDTH, BLOCK_SIZE)
        else:
            keys = widened(k_codes, of_keys, q, KV, WIDTH)
            k_codes = load_codes(k, next_blocks, next_entries, next_is_seen, KV, D, WIDTH, BLOCK_SIZE)
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale
        if KV == "int8" or KV == "fp8":
            scores *= of_keys[None, :]
        scores = tl.where(is_seen[None, :], scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        probs = tl.exp2(scores - new_maximum[:, None])
        shrink = tl.exp2(maximum - new_maximum)
        total = total * shrink + tl.sum(probs, 1)
        if weights is not None:
            sums = tl.maximum(tl.sum(probs.reshape(num_heads, TILE // PART, PART), 2), LEAST)
            part = tl.min(entries, 0) // PART + tl.arange(0, TILE // PART)
            head = tl.arange(0, num_heads)
            is_part = (head < GROUP)[:, None] & (part < num_parts)[None, :]
            at = head[:, None] * num_parts + part[None, :]
            tl.store(weights + at, tl.log2(sums) + new_maximum[:, None], mask=is_part)
        if KV == "int8" or KV == "fp8":
            probs *= of_values[None, :]
        if KV == "bf16" or KV == "fp32":
            values = load_tile(v, blocks, entries, is_seen, q, D, WIDTH, BLOCK_SIZE)
        else:
            values = widened(v_codes, of_values, q, KV, WIDTH)
            v_codes = load_codes(v, next_blocks, next_entries, next_is_seen, KV, D, WIDTH, BLOCK_SIZE)
        of_keys = load_scales(k_scales, next_blocks, next_entries, next_is_seen, KV, D, WIDTH, BLOCK_SIZE)
        of_values = load_scales(v_scales, next_blocks, next_entries, next_is_seen, KV, D, WIDTH, BLOCK_SIZE)
        acc = tl.dot(probs.to(q.dtype), values, acc * shrink[:, None], input_precision="ieee")
        maximum = new_maximum
        entries, is_seen, blocks = next_entries, next_is_seen, next_blocks
    return acc / total[:, None], maximum + tl.log2(total)
