"""Blocks gathered by the kernel are those that torch gathers, byte by byte, and the same for the way back."""

import random

import pytest
import torch

from pipeline.gpu.api import LayerKv
from pipeline.gpu.kv.dtype import KvDtype
from tests.kernels.guarded import guarded, poisoned
from tests.kernels.isolated import isolated

NUM_BLOCKS, NUM_LAYERS = 9, 3


def cache(kv_dtype: KvDtype, head_dim: int, block_size: int) -> list[LayerKv]:
    from pipeline.gpu.kernels.cache import kv_format

    shape, dtype = kv_format(NUM_BLOCKS, block_size, 2, head_dim, kv_dtype)
    generator = torch.Generator().manual_seed(1)

    def side() -> torch.Tensor:
        num_bytes = shape[-1] * dtype.itemsize
        values = torch.randint(256, (*shape[:-1], num_bytes), dtype=torch.uint8, generator=generator)
        return guarded(values.view(dtype))

    return [LayerKv(side(), side()) for _ in range(NUM_LAYERS)]


def as_bytes(layers: list[LayerKv]) -> list[torch.Tensor]:
    return [tensor.view(torch.uint8).clone() for layer in layers for tensor in layer]


@pytest.mark.parametrize(
    ("kv_dtype", "head_dim", "block_size"),
    [("bf16", 80, 16), ("fp32", 64, 8), ("int8", 80, 8), ("int4", 96, 32)],
)
@isolated
def test_there_and_back(kv_dtype: KvDtype, head_dim: int, block_size: int) -> None:
    from pipeline.gpu.kernels.block_copy import blocks_of, gather_blocks
    from pipeline.gpu.kv.staging import KernelStaging, TorchStaging

    layers = cache(kv_dtype, head_dim, block_size)
    staging, reference = KernelStaging(layers), TorchStaging(layers, 0)
    assert staging.content == reference.content
    rng = random.Random(2)
    ids, targets = rng.sample(range(NUM_BLOCKS), 4), rng.sample(range(NUM_BLOCKS), 4)
    staged = poisoned((len(ids), *staging.content), layers[0].k.dtype)
    gather_blocks(blocks_of(layers), guarded(torch.tensor(ids)), staged)
    expected = reference.gather(ids)
    assert staged.view(torch.uint8).equal(expected.view(torch.uint8))
    assert staging.gather(ids).view(torch.uint8).equal(expected.view(torch.uint8))
    before = as_bytes(layers)
    staging.scatter(targets, staged)
    by_kernel = as_bytes(layers)
    for tensor, was in zip((t for layer in layers for t in layer), before, strict=True):
        tensor.view(torch.uint8).copy_(was)
    reference.scatter(targets, expected)
    assert all(a.equal(b) for a, b in zip(by_kernel, as_bytes(layers), strict=True))
    assert not any(a.equal(b) for a, b in zip(by_kernel, before, strict=True))


@isolated
def test_what_cannot_be_copied_is_refused() -> None:
    from pipeline.gpu.kernels.block_copy import blocks_of, gather_blocks

    odd = [LayerKv(torch.zeros(4, 3, dtype=torch.uint8), torch.zeros(4, 3, dtype=torch.uint8))]
    with pytest.raises(ValueError, match="3 bytes does not lie"):
        blocks_of(odd)
    strided = [LayerKv(torch.zeros(4, 8, 4).transpose(0, 1), torch.zeros(4, 8, 4).transpose(0, 1))]
    with pytest.raises(ValueError, match="contiguous"):
        blocks_of(strided)
    blocks = blocks_of(cache("bf16", 64, 16))
    with pytest.raises(ValueError, match="1 blocks take"):
        gather_blocks(blocks, torch.tensor([1]), poisoned((7,), torch.float32))
    staged = torch.empty(1, 6, 2, 16, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="int64"):
        gather_blocks(blocks, torch.tensor([1], dtype=torch.int32), staged)
