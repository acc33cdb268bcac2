"""Reading keys, or values, out of a paged cache (kernels.cache) inside a kernel; no kernel of its own.

Of a quantised one, kernels.code_tile reads the codes.
"""

import triton
import triton.language as tl


@triton.jit
def head_blocks(table, entries, is_read, kv_head, KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Which [block, head] of the cache holds each entry: int64, counted in heads; 0 where none is read."""
    ids = tl.load(table + entries // BLOCK_SIZE, mask=is_read, other=0)
    return ids.to(tl.int64) * KV_HEADS + kv_head


@triton.jit
def load_tile(
    stored, blocks, entries, is_read, like, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    """Of a cache that is not quantised: [entries, WIDTH] of like's dtype; 0 where nothing is read, and in
    columns from D on.

    Args:
        stored: of all heads.
        blocks: what head_blocks gives.
    """
    column = tl.arange(0, WIDTH)
    at = (blocks * BLOCK_SIZE + entries % BLOCK_SIZE) * D
    mask = is_read[:, None] if D == WIDTH else is_read[:, None] & (column < D)[None, :]
    return tl.load(stored + at[:, None] + column[None, :], mask=mask, other=0).to(like.dtype)
