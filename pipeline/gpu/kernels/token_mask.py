"""Tokens that a row may not choose: their logits become -inf, in place.

logits [M, V] fp32, contiguous; mask [M, ceil(V / 32)] int32: token 32 w + i may be chosen where bit i of word
w is 1 (gpu.logit_rules.LogitRules.mask). Bytes moved, a row: V / 8 read, and 4 written for each token that is
out; no logit is read.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.gpu.kernels.finding import Find, LaunchConfig, find_config, keep_default
from pipeline.gpu.kernels.variant import ModelShape, Variant

DEFAULT = LaunchConfig(num_warps=4, num_stages=1, constants={"WORDS": 128})
"""4,096 tokens a program: 32 stores a thread, of which most are masked off where little is forbidden."""


@triton.jit
def token_mask_kernel(logits_ptr, mask_ptr, V, num_words, WORDS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    words = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    bits = tl.load(mask_ptr + row * num_words + words, mask=words < num_words, other=-1)
    lanes = tl.arange(0, 32)
    ids = words[:, None] * 32 + lanes[None, :]
    is_out = ((bits[:, None] >> lanes[None, :]) & 1) == 0
    out = tl.full([WORDS, 32], float("-inf"), tl.float32)
    tl.store(logits_ptr + row * V + ids, out, mask=is_out & (ids < V))


def mask_tokens(logits: Tensor, mask: Tensor, config: LaunchConfig | None = None) -> None:
    """[M, V], [M, ceil(V / 32)]."""
    num_rows, vocab_size = logits.shape
    num_words = -(-vocab_size // 32)
    if logits.dtype != torch.float32 or not logits.is_contiguous():
        raise ValueError(f"no logits to mask: {logits.dtype} of strides {list(logits.stride())}")
    if mask.shape != (num_rows, num_words) or mask.dtype != torch.int32 or not mask.is_contiguous():
        raise ValueError(f"mask {list(mask.shape)} {mask.dtype} for logits {list(logits.shape)}")
    config = config or find_config("token_mask", DEFAULT, logits.device, vocab=vocab_size)
    words = config.constants["WORDS"]
    token_mask_kernel[(num_rows, triton.cdiv(num_words, words))](
        logits,
        mask,
        vocab_size,
        num_words,
        WORDS=words,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )


def variants(shape: ModelShape, find: Find = keep_default) -> list[Variant]:
    """One, for all models."""
    config = find("token_mask", DEFAULT, vocab=shape.vocab_size)
    return [
        Variant(
            name="token_mask",
            kernel=token_mask_kernel,
            types={"logits_ptr": "*fp32", "mask_ptr": "*i32", "V": "i32", "num_words": "i32"},
            constants=dict(config.constants),
            aligned=frozenset(("logits_ptr", "mask_ptr", "V")),
            config=config,
            max_registers=64,
        )
    ]
