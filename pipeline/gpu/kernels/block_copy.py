"""Blocks of all layers gathered into one staging buffer, or scattered back: one launch a copy.

Shapes: N blocks, 2 L tensors (keys and values of each layer), each [num_blocks, ...] contiguous, so that a
block of one tensor is one run of bytes, a multiple of 16. Staging is [N, 2 L, ...] contiguous. Bytes are
moved, whatever they mean: N * 2 L blocks read and as many written. A program moves WORDS * 8 bytes in 16-byte
loads and stores, 64 bytes a thread at once.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.gpu.api import LayerKv
from pipeline.gpu.kernels.cache import kv_format
from pipeline.gpu.kernels.finding import Find, LaunchConfig, find_config, keep_default
from pipeline.gpu.kernels.variant import ModelShape, Variant

DEFAULT = LaunchConfig(num_warps=4, num_stages=1, constants={"WORDS": 1024})
WORD_BYTES = 8
ALIGNMENT = 16


@triton.jit
def copy_kernel(pointers, ids, staged, num_words, IS_GATHER: tl.constexpr, WORDS: tl.constexpr):
    """On a grid [runs of WORDS, tensors, blocks]; a block of one tensor is num_words words."""
    block = tl.program_id(2).to(tl.int64)
    number = block * tl.num_programs(1) + tl.program_id(1)
    tensor = tl.load(pointers + tl.program_id(1)).to(tl.pointer_type(tl.int64))
    tensor = tl.multiple_of(tensor, 16)
    word = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    is_word = word < num_words
    in_cache = tensor + tl.load(ids + block) * num_words + word
    in_staging = staged + number * num_words + word
    if IS_GATHER:
        tl.store(in_staging, tl.load(in_cache, mask=is_word), mask=is_word)
    else:
        tl.store(in_cache, tl.load(in_staging, mask=is_word), mask=is_word)


class Blocks(NamedTuple):
    """A cache as the kernel finds it; made by blocks_of."""

    tensors: list[Tensor]
    """Kept alive, 2 L."""
    pointers: Tensor
    """[2 L] int64, on their device."""
    num_words: int


def blocks_of(layers: list[LayerKv]) -> Blocks:
    """Once for a cache: it waits for the device."""
    tensors = [tensor for layer in layers for tensor in layer]
    first = tensors[0]
    num_bytes = first[0].numel() * first.element_size()
    if any(t.shape != first.shape or t.dtype != first.dtype or not t.is_contiguous() for t in tensors):
        raise ValueError("the layers' tensors must be contiguous, and alike")
    if num_bytes % ALIGNMENT or any(t.data_ptr() % ALIGNMENT for t in tensors):
        raise ValueError(f"a block of {num_bytes} bytes does not lie at multiples of {ALIGNMENT}")
    pointers = torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64, device=first.device)
    return Blocks(tensors, pointers, num_bytes // WORD_BYTES)


def gather_blocks(blocks: Blocks, ids: Tensor, staged: Tensor, config: LaunchConfig | None = None) -> None:
    """Copy blocks ids [N] int64 to staged [N, 2 L, ...]."""
    _launch(blocks, ids, staged, True, config)


def scatter_blocks(blocks: Blocks, ids: Tensor, staged: Tensor, config: LaunchConfig | None = None) -> None:
    """Copy staged [N, 2 L, ...] to blocks ids [N] int64, which differ from one another."""
    _launch(blocks, ids, staged, False, config)


def _launch(
    blocks: Blocks, ids: Tensor, staged: Tensor, is_gather: bool, config: LaunchConfig | None
) -> None:
    num_tensors, num_words = len(blocks.tensors), blocks.num_words
    num_bytes = len(ids) * num_tensors * num_words * WORD_BYTES
    if staged.numel() * staged.element_size() != num_bytes or not staged.is_contiguous():
        raise ValueError(f"{len(ids)} blocks take {num_bytes} bytes in a row, staging is {staged.shape}")
    if ids.dtype != torch.int64 or not ids.is_contiguous():
        raise ValueError(f"block ids are contiguous int64, not {ids.dtype}")
    block_bytes = num_words * WORD_BYTES
    config = config or find_config("block_copy", DEFAULT, ids.device, block_bytes=block_bytes)
    copy_kernel[(triton.cdiv(num_words, config.constants["WORDS"]), num_tensors, len(ids))](
        blocks.pointers,
        ids,
        staged.flatten().view(torch.int64),
        num_words,
        IS_GATHER=is_gather,
        **config.constants,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )


def variants(shape: ModelShape, find: Find = keep_default) -> list[Variant]:
    """There and back: the same for all shapes whose blocks are a multiple of 16 words."""
    pointers = ("pointers", "ids", "staged")
    block_shape, dtype = kv_format(1, shape.block_size, shape.num_kv_heads, shape.head_dim, shape.kv_dtype)
    block_bytes = math.prod(block_shape) * dtype.itemsize
    config = find("block_copy", DEFAULT, block_bytes=block_bytes)
    return [
        Variant(
            name=f"{'gather' if is_gather else 'scatter'} {shape.name}",
            kernel=copy_kernel,
            types={**dict.fromkeys(pointers, "*i64"), "num_words": "i32"},
            constants={"IS_GATHER": is_gather, **config.constants},
            aligned=frozenset((*pointers, "num_words")),
            config=config,
            is_hot=False,
        )
        for is_gather in (True, False)
    ]
