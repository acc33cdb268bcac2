"""KV blocks in host memory: what comes back is what was there, and a text does not show that it was away."""

import random

import msgspec
import pytest
import torch

from pipeline.errors import ConfigError
from pipeline.gpu.api import LayerKv
from pipeline.gpu.kv.dtype import block_bytes
from pipeline.gpu.kv.host import HostKv
from pipeline.gpu.memory.sizing import count_host_blocks
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import build_runner
from pipeline.messages import StepPlan
from tests.gpu.driver import TINY, Driver, Sequence, random_tensors

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")),
]
NUM_BLOCKS, NUM_PLACES = 100, 80
EMPTY_PLAN = StepPlan(1, 0, [], [], [], [], [], [], [], [], [], [], [])


def cache(block_dim: int, device: str) -> list[LayerKv]:
    shape = [3, 4, 5]
    shape.insert(block_dim, NUM_BLOCKS)
    return [LayerKv(torch.randn(shape, device=device), torch.randn(shape, device=device)) for _ in range(2)]


def content(layers: list[LayerKv], block_dim: int, ids: list[int]) -> list[torch.Tensor]:
    index = torch.tensor(ids, device=layers[0].k.device)
    return [tensor.index_select(block_dim, index).clone() for layer in layers for tensor in layer]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block_dim", [0, 1, 3])
def test_blocks_come_back_as_they_were(block_dim: int, device: str) -> None:
    layers = cache(block_dim, device)
    host_kv = HostKv(layers, block_dim, NUM_PLACES)
    rng = random.Random(block_dim)
    away, target = rng.sample(range(NUM_BLOCKS), 70), rng.sample(range(NUM_BLOCKS), 70)
    places = rng.sample(range(NUM_PLACES), 70)
    untouched = sorted(set(range(NUM_BLOCKS)) - set(target))
    before, others = content(layers, block_dim, away), content(layers, block_dim, untouched)
    plan = msgspec.structs.replace(
        EMPTY_PLAN, saved_ids=away, saved_places=places, loaded_places=places, loaded_ids=target
    )
    host_kv.copy(plan)
    for was, is_now in zip(before, content(layers, block_dim, target), strict=True):
        assert torch.equal(was, is_now)
    for was, is_now in zip(others, content(layers, block_dim, untouched), strict=True):
        assert torch.equal(was, is_now)


@pytest.mark.parametrize("device", DEVICES)
def test_measuring_changes_no_block(device: str) -> None:
    layers = cache(0, device)
    before = content(layers, 0, list(range(NUM_BLOCKS)))
    ticks = iter([1000, 99_000, 100_000, 116_000, *range(200_000, 800_000, 100_000)])
    assert HostKv(layers, 0, NUM_PLACES).measure_sync(lambda: next(ticks)) == 1000  # 8 there, 8 back
    for was, is_now in zip(before, content(layers, 0, list(range(NUM_BLOCKS))), strict=True):
        assert torch.equal(was, is_now)
    assert HostKv(layers, 0, 0).measure_sync(lambda: 1 // 0) == 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", ["torch", "auto"])
def test_a_text_does_not_show_a_swap(dtype: str, device: str, backend: str) -> None:
    options = RunnerOptions(
        device=device,
        dtype=dtype,
        backend=backend,
        num_blocks=40,
        max_num_seqs=4,
        host_kv_memory=40 * 16 * 2 * 2 * 2 * 16 * 4,
    )
    undisturbed = texts(options, swaps=False)
    assert undisturbed == texts(options, swaps=True)
    assert len(set(map(tuple, undisturbed))) == 3


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "int4"])
@pytest.mark.parametrize("backend", ["torch", "host"])
def test_scales_go_where_their_codes_go(backend: str, kv_dtype: str) -> None:
    options = RunnerOptions(
        device="cpu",
        backend=backend,
        kv_dtype=kv_dtype,
        num_blocks=40,
        max_num_seqs=4,
        host_kv_memory=40 * block_bytes(TINY, 16, kv_dtype),
    )
    assert texts(options, swaps=False) == texts(options, swaps=True)


def texts(options: RunnerOptions, *, swaps: bool) -> list[list[int]]:
    """What three sequences say; one after the other is away for a while, and blocks are given to others."""
    driver = Driver(build_runner(TINY, random_tensors(TINY), options))
    assert driver.runner.capacity.num_host_blocks >= 40
    sequences = [driver.add(range(start, start + 20)) for start in (1, 30, 60)]
    other = driver.add(range(50, 90))
    for number in range(24):
        away = sequences[number // 8] if swaps and number % 8 in (3, 4, 5) else None
        if away is not None and number % 8 == 3:
            driver.swap_out(away)
        here = [sequence for sequence in sequences if sequence is not away]
        driver.step(driver.next_rows([*here, other], 16))
    finish(driver, sequences)
    return [sequence.output[:20] for sequence in sequences]


def finish(driver: Driver, sequences: list[Sequence]) -> None:
    while any(len(sequence.output) < 20 for sequence in sequences):
        driver.step(driver.next_rows(sequences, 16))


def test_the_size_is_bytes_or_a_size_and_not_more_than_there_is() -> None:
    bytes_a_block = block_bytes(TINY, 16, "fp32")
    assert count_host_blocks(0, bytes_a_block, 10**9) == 0
    assert count_host_blocks(3 * bytes_a_block + 1, bytes_a_block, 10**9) == 3
    assert count_host_blocks("1MiB", bytes_a_block, 10**9) == (1 << 20) // bytes_a_block
    with pytest.raises(ConfigError, match="is not a size: give bytes, 0 for none"):
        count_host_blocks("much", bytes_a_block, 10**9)
    with pytest.raises(ConfigError, match=r"host_kv_memory = .* is more than is available"):
        count_host_blocks("900000GiB", bytes_a_block, 10**9)
