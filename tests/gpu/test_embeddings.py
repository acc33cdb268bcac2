"""Embeddings: what transformers' hidden states come to, the same bits however a prompt is run."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.pooling import MOST, PooledStep, Pools
from pipeline.gpu.runner import build_runner
from pipeline.messages import Pooling
from tests.gpu import test_gemma3
from tests.gpu.driver import TINY, Driver, random_tensors
from tests.gpu.oracle import hugging_face

POOLINGS: tuple[Pooling, ...] = ("last", "mean")
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"family": "qwen3", "qk_norm": True, "tie_embeddings": True},
    "gemma3": test_gemma3.GEMMA,
}
LENGTHS = (1, 2, 16, 45, 130)


def driver_of(architecture: Architecture, **options: Any) -> Driver:
    options = {"device": "cpu", "num_blocks": 200, "max_num_seqs": 16, "num_threads": 2} | options
    return Driver(build_runner(architecture, random_tensors(architecture), RunnerOptions(**options)))


def prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, TINY.vocab_size, (length,), generator=generator).tolist()


def embed(driver: Driver, pooling: Pooling, lengths: tuple[int, ...] = LENGTHS, chunk: int = 64) -> Tensor:
    """All at once, [len(lengths), C]; beside them somebody generates text."""
    talker = driver.add([1, 2, 3])
    asked = [driver.add(prompt(length), pooling=pooling) for length in lengths]
    while rows := driver.next_rows([s for s in asked if s.embedding is None], chunk):
        driver.step([(talker, len(talker.token_ids) - talker.num_computed), *rows])
    for sequence in (talker, *asked):
        driver.remove(sequence)
    found = [each.embedding for each in asked if each.embedding is not None]
    return torch.stack(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_states_are_those_of_transformers(family: str) -> None:
    architecture = msgspec.structs.replace(TINY, **FAMILIES[family])
    driver = driver_of(architecture, dtype="float32", backend="torch")
    oracle = hugging_face(architecture, random_tensors(architecture))
    states = []
    for length in LENGTHS:
        with torch.inference_mode():
            answer = oracle(torch.tensor([prompt(length)]), output_hidden_states=True)
        states.append(answer.hidden_states[-1][0])
    expected = {
        "last": torch.stack([each[-1] for each in states]),
        "mean": torch.stack([each.mean(0) for each in states]),
    }
    for pooling in POOLINGS:
        found = embed(driver, pooling)
        torch.testing.assert_close(
            found, torch.nn.functional.normalize(expected[pooling]), atol=2e-6, rtol=1e-5
        )


BACKENDS: dict[str, dict[str, Any]] = {
    "torch fp32": {"backend": "torch", "dtype": "float32"},
    "host bf16": {"backend": "host", "weights": "bf16"},
    "host int8": {"backend": "host", "weights": "int8"},
}


@pytest.fixture(scope="module", params=BACKENDS)
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    before = torch.get_num_threads()
    yield driver_of(TINY, **BACKENDS[request.param])
    torch.set_num_threads(before)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_same_bits_alone_among_others_and_in_any_chunks(driver: Driver, pooling: Pooling) -> None:
    together = embed(driver, pooling)
    assert torch.allclose(together.norm(dim=1), torch.ones(len(LENGTHS)), atol=1e-6)
    assert embed(driver, pooling, chunk=7).equal(together)
    for index, length in enumerate(LENGTHS):
        assert embed(driver, pooling, (length,)).equal(together[index : index + 1]), length


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_preempted_one_begins_anew(driver: Driver, pooling: Pooling) -> None:
    (expected,) = embed(driver, pooling, (45,))
    sequence = driver.add(prompt(45), pooling=pooling)
    driver.step([(sequence, 30)])
    driver.preempt(sequence)
    driver.step([(sequence, 20)])
    driver.step([(sequence, 25)])
    assert sequence.embedding is not None and sequence.embedding.equal(expected)
    driver.remove(sequence)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_host_kernels_agree_with_torch(family: str, pooling: Pooling) -> None:
    architecture = msgspec.structs.replace(TINY, **FAMILIES[family])
    expected = embed(driver_of(architecture, dtype="float32", backend="torch"), pooling)
    found = embed(driver_of(architecture, backend="host", weights="bf16"), pooling)
    assert (found - expected).norm(dim=1).max() < 0.02


def test_without_embeddings_nothing_is_kept() -> None:
    pools = Pools(4, 8, torch.device("cpu"))
    assert not pools.admit([]).size and pools._sums is None


def pooled(slots: list[int], done: list[int], cleared: list[int]) -> PooledStep:
    indices = [torch.tensor(each, dtype=torch.int64) for each in (slots, done, cleared)]
    return PooledStep(indices[0], indices[1], indices[2] if cleared else None)


def test_states_that_are_no_numbers_spoil_their_own_embedding_only() -> None:
    pools = Pools(2, 3, torch.device("cpu"))
    states = torch.tensor([[3.0, 4, 0], [torch.nan, 1, 1], [1, 0, 0], [1, MOST, 1]])
    first, second = pools.add(pooled([0, 1, 0, 1], [0, 1], [0, 1]), states)
    assert torch.allclose(first, torch.tensor([0.5**0.5, 0.5**0.5, 0.0]))
    assert second.isnan().all()
    (again,) = pools.add(pooled([1], [1], [1]), torch.tensor([[0.0, 0, 2]]))
    assert again.tolist() == [0, 0, 1]  # cleared for the next one


def test_sums_of_many_tokens_are_exact() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(1300, 3, generator=generator)  # in several parts
    whole = Pools(4, 3, torch.device("cpu")).add(pooled([2] * 1300, [2], [2]), states)
    pools = Pools(4, 3, torch.device("cpu"))
    pools.add(pooled([2] * 700, [], [2]), states[:700].flip(0))
    assert pools.add(pooled([2] * 600, [2], []), states[700:]).equal(whole)
    expected = torch.nn.functional.normalize(states.double().sum(0, keepdim=True))
    torch.testing.assert_close(whole.double(), expected, atol=1e-7, rtol=1e-6)
