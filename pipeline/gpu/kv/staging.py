"""Blocks of all layers side by side in one tensor of the device, and back into the cache."""

from typing import Protocol

import torch
from torch import Tensor

from pipeline.gpu.api import LayerKv


class Staging(Protocol):
    """Shapes: N blocks, L layers; E, several dimensions, the content of a block's k or v in one layer."""

    content: tuple[int, ...]
    """(2 L, *E)."""

    def gather(self, block_ids: list[int]) -> Tensor:
        """-> a new tensor, [N, 2 L, *E]."""
        ...

    def scatter(self, block_ids: list[int], staged: Tensor) -> None:
        """Of [N, 2 L, *E]."""
        ...


def staging_of(layers: list[LayerKv], block_dim: int) -> Staging:
    """By Triton where the cache is on a GPU, in the layout of its kernels (kernels.cache); else by torch."""
    if layers[0].k.is_cuda and block_dim == 0:
        return KernelStaging(layers)
    return TorchStaging(layers, block_dim)


class TorchStaging:
    """One operation a tensor; `block_dim` is api.KvLayout.kv_block_dim."""

    def __init__(self, layers: list[LayerKv], block_dim: int) -> None:
        self._blocks = [tensor.movedim(block_dim, 0) for layer in layers for tensor in layer]
        self.content = (len(self._blocks), *self._blocks[0].shape[1:])

    def gather(self, block_ids: list[int]) -> Tensor:
        index = index_of(block_ids, self._blocks[0].device)
        return torch.stack([blocks.index_select(0, index) for blocks in self._blocks], dim=1)

    def scatter(self, block_ids: list[int], staged: Tensor) -> None:
        index = index_of(block_ids, self._blocks[0].device)
        for number, blocks in enumerate(self._blocks):
            blocks.index_copy_(0, index, staged[:, number])


class KernelStaging:
    """One launch for all tensors (kernels.block_copy), blocks first in each."""

    def __init__(self, layers: list[LayerKv]) -> None:
        from pipeline.gpu.kernels import block_copy  # imports triton

        self._kernels = block_copy
        self._blocks = block_copy.blocks_of(layers)
        self.content = (len(self._blocks.tensors), *layers[0].k.shape[1:])

    def gather(self, block_ids: list[int]) -> Tensor:
        first = self._blocks.tensors[0]
        staged = torch.empty((len(block_ids), *self.content), dtype=first.dtype, device=first.device)
        self._kernels.gather_blocks(self._blocks, index_of(block_ids, first.device), staged)
        return staged

    def scatter(self, block_ids: list[int], staged: Tensor) -> None:
        index = index_of(block_ids, self._blocks.pointers.device)
        self._kernels.scatter_blocks(self._blocks, index, staged)


def index_of(block_ids: list[int], device: torch.device) -> Tensor:
    """[N] int64 on the device, without waiting for what the device is doing."""
    index = torch.tensor(block_ids, dtype=torch.int64, pin_memory=device.type == "cuda")
    return index.to(device, non_blocking=True)
