"""What a row's query sees of its context, and which tiles have something of it; no kernel of its own.

The tiles of a row that its query sees something of are the first ones, for the sinks, and the last ones, for
the window. They are counted through, so that a loop over them has no branch and can be pipelined.
"""

import triton
import triton.language as tl

ALL = tl.constexpr(1 << 30)
"""The window of a row that sees all."""


@triton.jit
def what_is_seen(sinks, windows, row, layer_window):
    """-> how many first and how many last entries (api.StepInputs, api.Ops.attention)."""
    num_sinks = 0
    window = ALL
    if windows is not None:
        num_sinks = tl.load(sinks + row)
        window = tl.load(windows + row)
        window = tl.where(window == 0, ALL, window)
    if layer_window > 0:
        num_sinks = 0
        window = tl.minimum(window, layer_window)
    return num_sinks, window


@triton.jit
def seen_tiles(context_len, num_sinks, window, TILE: tl.constexpr):
    """-> how many first tiles are seen, how many after them are not, how many are seen in all."""
    first_recent = tl.maximum(context_len - window, 0) // TILE
    num_first = tl.minimum(tl.cdiv(num_sinks, TILE), first_recent)
    num_hidden = first_recent - num_first
    return num_first, num_hidden, tl.cdiv(context_len, TILE) - num_hidden


@triton.jit
def tile_entries(number, num_first, num_hidden, context_len, num_sinks, window, TILE: tl.constexpr):
    """The entries of the row's seen tile of that number, and which of them are seen: none past the last."""
    tile = tl.where(number < num_first, number, number + num_hidden)
    entries = tile * TILE + tl.arange(0, TILE)
    return entries, is_seen(entries, 1, context_len, num_sinks, window)


@triton.jit
def is_seen(first, size, context_len, num_sinks, window):
    """Whether any of the `size` entries from `first` on is seen."""
    is_recent = first + size > context_len - window
    return (is_recent | (first < num_sinks)) & (first < context_len)
