"""Blocks of a cache to a staging buffer and back."""

import torch
from torch import Tensor

from pipeline.gpu.kernels import block_copy
from pipeline.gpu.kernels.config import LaunchConfig
from pipeline.gpu.kernels.variant import ModelShape
from pipeline.gpu.kernels.workloads.paged import filled_cache
from pipeline.gpu.kernels.workloads.workload import Workload

NUM_LAYERS = 4


def copy(shape: ModelShape, num_blocks: int, device: torch.device) -> Workload:
    """Gathered out of a few layers; the check scatters them again, elsewhere."""
    layers = [filled_cache(shape, 2 * num_blocks, device).kv for _ in range(NUM_LAYERS)]
    blocks = block_copy.blocks_of(layers)
    order = torch.randperm(2 * num_blocks, device=device)
    sources, targets = order[:num_blocks].contiguous(), order[num_blocks:].contiguous()
    first = blocks.tensors[0]
    staged = torch.empty((num_blocks, 2 * NUM_LAYERS, *first.shape[1:]), dtype=first.dtype, device=device)

    def error(config: LaunchConfig | None) -> float:
        block_copy.gather_blocks(blocks, sources, staged, config)
        expected = torch.stack([tensor[sources] for tensor in blocks.tensors], 1)
        block_copy.scatter_blocks(blocks, targets, staged, config)
        found = torch.stack([tensor[targets] for tensor in blocks.tensors], 1)
        return float(not (_same(staged, expected) and _same(found, expected)))

    return Workload(
        "block_copy",
        f"gather {shape.name} {shape.kv_dtype} {num_blocks}",
        block_copy.DEFAULT,
        {"block_bytes": blocks.num_words * block_copy.WORD_BYTES},
        lambda config: block_copy.gather_blocks(blocks, sources, staged, config),
        error,
        num_bytes=2 * staged.numel() * staged.element_size(),
        tolerance=0.0,
    )


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
