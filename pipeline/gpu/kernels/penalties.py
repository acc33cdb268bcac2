"""Penalties on tokens that have come before, in place: repetition, then frequency and presence.

    x = x / repetition if x > 0 else x * repetition     for tokens of prompt or output (Keskar et al. 2019)
    x = x - frequency * times - presence                for tokens that are `times` > 0 in the output

logits [M, V] fp32, contiguous, of which the rows at [N] are changed; counts [P, V] int32 as gpu.seen_tokens
has them; places [N] int64, a row of counts each; repetition, frequency, presence [N] fp32. Bytes moved, each
of N rows: 4 V of counts, and 8 for each token that has come before; no other logit is read or written.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.gpu.kernels.finding import Find, LaunchConfig, find_config, keep_default
from pipeline.gpu.kernels.variant import ModelShape, Variant

DEFAULT = LaunchConfig(num_warps=4, num_stages=1, constants={"BLOCK": 1024})
"""8 counts a thread: two loads of 16 bytes."""


@triton.jit
def penalties_kernel(
    logits_ptr, at_ptr, counts_ptr, places_ptr, repetition_ptr, frequency_ptr, presence_ptr, V,
    BLOCK: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    counts = tl.load(counts_ptr + tl.load(places_ptr + number) * V + ids, mask=ids < V, other=0)
    is_seen = counts > 0
    places = logits_ptr + tl.load(at_ptr + number) * V + ids
    x = tl.load(places, mask=is_seen, other=0.0)
    repetition = tl.load(repetition_ptr + number)
    x = tl.where(x > 0.0, tl.div_rn(x, repetition), x * repetition)
    times = counts >> 1
    x -= tl.load(frequency_ptr + number) * times.to(tl.float32)
    x -= tl.load(presence_ptr + number) * (times > 0).to(tl.float32)
    tl.store(places, x, mask=is_seen)


def penalise(
    logits: Tensor,
    at: Tensor,
    counts: Tensor,
    places: Tensor,
    penalties: tuple[Tensor, Tensor, Tensor],
    config: LaunchConfig | None = None,
) -> None:
    """[M, V], [N], [P, V], [N], and repetition, frequency, presence [N] each."""
    vocab_size, columns = logits.shape[1], (at, places, *penalties)
    if logits.dtype != torch.float32 or not (logits.is_contiguous() and counts.is_contiguous()):
        raise ValueError(f"no logits to change: {logits.dtype} of strides {list(logits.stride())}")
    if counts.shape[1] != vocab_size or any(each.shape != at.shape or each.dim() != 1 for each in columns):
        shapes = [list(each.shape) for each in (logits, counts, *columns)]
        raise ValueError(f"logits, counts and columns of {shapes}")
    config = config or find_config("penalties", DEFAULT, logits.device, vocab=vocab_size)
    block = config.constants["BLOCK"]
    penalties_kernel[(at.shape[0], triton.cdiv(vocab_size, block))](
        logits,
        at,
        counts,
        places,
        *penalties,
        vocab_size,
        BLOCK=block,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )


def variants(shape: ModelShape, find: Find = keep_default) -> list[Variant]:
    """One, for all models."""
    config = find("penalties", DEFAULT, vocab=shape.vocab_size)
    pointers = {"logits_ptr": "*fp32", "at_ptr": "*i64", "counts_ptr": "*i32", "places_ptr": "*i64"}
    pointers |= dict.fromkeys(("repetition_ptr", "frequency_ptr", "presence_ptr"), "*fp32")
    return [
        Variant(
            name="penalties",
            kernel=penalties_kernel,
            types={**pointers, "V": "i32"},
            constants=dict(config.constants),
            aligned=frozenset((*pointers, "V")),
            config=config,
            max_registers=64,
        )
    ]
