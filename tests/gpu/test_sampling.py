"""The sampling op: what it may choose, how often, and that rows do not see one another."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pipeline.gpu.host.build import Build, find_compiler
from pipeline.gpu.host.library import load_library
from pipeline.gpu.host.sampling import HostSampler
from pipeline.gpu.noise import uniform
from pipeline.gpu.sampling import SamplingOp, SamplingRows

VOCAB = 200


@pytest.fixture(scope="module", params=["torch", "host"])
def op(request: pytest.FixtureRequest) -> SamplingOp:
    if request.param == "torch":
        return SamplingOp()
    return HostSampler(load_library(Build(find_compiler())), 2)


def rows_of(
    num_rows: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
) -> SamplingRows:
    """Row i has seed i unless one is given."""
    return SamplingRows(
        temperature=torch.full((num_rows,), temperature),
        top_k=torch.full((num_rows,), top_k),
        top_p=torch.full((num_rows,), top_p),
        seed=torch.arange(num_rows) if seed is None else torch.full((num_rows,), seed),
        position=torch.full((num_rows,), 7),
    )


def drawn(op: SamplingOp, probs: list[float], num_rows: int, **params: float) -> Tensor:
    """Counts of the tokens that num_rows rows of different seeds choose."""
    logits = torch.tensor(probs).log().expand(num_rows, -1)
    return torch.bincount(op(logits, rows_of(num_rows, **params)), minlength=len(probs))  # type: ignore[arg-type]


def random_logits(num_rows: int, seed: int, spread: float = 3.0) -> Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread


def random_rows(num_rows: int, seed: int) -> SamplingRows:
    """A mixture of greedy, plain and filtered rows."""
    rng = np.random.default_rng(seed)
    return SamplingRows(
        temperature=torch.from_numpy(rng.choice([0.0, 1e-6, 0.7, 1.0, 5.0], num_rows).astype(np.float32)),
        top_k=torch.from_numpy(rng.choice([0, 1, 3, 64, 100, VOCAB, 10**6], num_rows)),
        top_p=torch.from_numpy(rng.choice([0.0, 0.3, 0.9, 0.999, 1.0], num_rows).astype(np.float32)),
        seed=torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, num_rows)),
        position=torch.from_numpy(rng.integers(0, 10_000, num_rows)),
    )


def test_greedy_takes_the_lowest_id_of_a_tie(op: SamplingOp) -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.5, 0.5, 0.5, 0.5]]).bfloat16()
    assert op(logits, rows_of(2, temperature=0.0)).tolist() == [1, 0]


@given(seed=st.integers(0, 2**32), num_rows=st.integers(1, 12), is_coarse=st.booleans())
def test_a_row_gets_the_same_token_alone_and_in_any_batch(
    op: SamplingOp, seed: int, num_rows: int, is_coarse: bool
) -> None:
    logits = random_logits(num_rows, seed)
    logits = logits.round() if is_coarse else logits  # ties, as bf16 logits have
    rows = random_rows(num_rows, seed)
    together = op(logits, rows)
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed))
    assert op(logits[order], rows.select(order)).equal(together[order])
    for i in range(num_rows):
        alone = op(logits[i : i + 1], rows.select(torch.tensor([i])))
        assert alone.item() == together[i].item()


@given(
    seed=st.integers(0, 2**32), temperature=st.sampled_from([1e-6, 0.5, 1.0, 100.0]), is_coarse=st.booleans()
)
def test_top_k_of_one_is_greedy(op: SamplingOp, seed: int, temperature: float, is_coarse: bool) -> None:
    logits = random_logits(6, seed)
    logits = logits.round() if is_coarse else logits
    chosen = op(logits, rows_of(6, temperature=temperature, top_k=1))
    assert chosen.equal(logits.argmax(-1))


@given(seed=st.integers(0, 2**32), top_k=st.integers(2, VOCAB), top_p=st.sampled_from([0.2, 0.8, 0.99, 1.0]))
def test_only_the_nucleus_of_the_top_k_is_chosen(op: SamplingOp, seed: int, top_k: int, top_p: float) -> None:
    logits = random_logits(1, seed, spread=1.0)
    chosen = op(logits.expand(32, -1), rows_of(32, top_k=top_k, top_p=top_p))
    values, ids = torch.softmax(logits[0].double(), -1).sort(descending=True)
    values = values[:top_k] / values[:top_k].sum()
    mass_before = values.cumsum(0) - values
    allowed = ids[:top_k][mass_before < top_p + 1e-5]
    assert torch.isin(chosen, allowed).all()


@pytest.mark.parametrize(
    ("top_p", "allowed"), [(0.0, {0}), (1e-30, {0}), (0.5, {0}), (0.61, {0, 1}), (1.0, {0, 1})]
)
def test_nucleus_edges(op: SamplingOp, top_p: float, allowed: set[int]) -> None:
    counts = drawn(op, [0.6, 0.4], 200, top_p=top_p)
    assert set(counts.nonzero().flatten().tolist()) == allowed


@pytest.mark.parametrize(
    "params",
    [{}, {"top_k": 6}, {"top_p": 0.9999}, {"temperature": 2.0}, {"top_k": 3, "temperature": 0.5}],
    ids=str,
)
def test_frequencies_are_the_probabilities(op: SamplingOp, params: dict[str, float]) -> None:
    probs, num_rows = [0.05, 0.4, 0.02, 0.3, 0.2, 0.03], 20_000
    weights = torch.tensor(probs, dtype=torch.float64) ** (1 / params.get("temperature", 1.0))
    weights[weights.argsort(descending=True)[int(params.get("top_k", 6)) :]] = 0
    expected = weights / weights.sum() * num_rows
    counts = drawn(op, probs, num_rows, **params)
    assert counts[expected == 0].sum() == 0
    chi_square = ((counts - expected) ** 2 / expected)[expected > 0].sum()
    assert chi_square < 25  # 5 degrees of freedom: exceeded once in 7,000 tries; the seeds are fixed


@pytest.mark.parametrize("vocab", [64, 65, 1025, 5000])
def test_wide_nuclei_reach_past_the_candidates(op: SamplingOp, vocab: int) -> None:
    # a flat distribution: 99 % of the mass needs 99 % of the tokens
    chosen = op(torch.zeros(400, vocab), rows_of(400, top_p=0.99))
    assert chosen.max() > 0.9 * vocab
    assert chosen.max() <= 0.99 * vocab + 1
    assert chosen.float().mean() == pytest.approx(vocab / 2, rel=0.1)


def test_masked_tokens_and_greedy_neighbours_give_no_nan(op: SamplingOp) -> None:
    logits = torch.full((3, VOCAB), -torch.inf)
    logits[:, 5] = 1.0
    rows = SamplingRows(
        temperature=torch.tensor([0.0, 1.0, 1e-30]),
        top_k=torch.tensor([0, 0, 10]),
        top_p=torch.tensor([1.0, 1.0, 0.5]),
        seed=torch.tensor([1, 2, 3]),
        position=torch.tensor([0, 0, 0]),
    )
    assert op(logits, rows).tolist() == [5, 5, 5]


def test_logits_are_left_as_they_were(op: SamplingOp) -> None:
    logits = random_logits(4, 0)
    before = logits.clone()
    op(logits, rows_of(4, temperature=0.5, top_p=0.5))
    assert logits.equal(before)


def test_noise_is_splitmix64() -> None:
    # Vigna's splitmix64.c from state 0: its first output is the mix of one gamma
    first = 0xE220A8397B1DCDAF
    state = torch.tensor([first - 2**64])
    assert uniform(torch.tensor([0]), torch.tensor([-1])).item() == (_splitmix(state.item()) >> 11) * 2.0**-53


def _splitmix(z: int) -> int:
    mask = 2**64 - 1
    z &= mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_noise_differs_by_seed_and_by_position_and_fills_the_interval() -> None:
    seeds, positions = torch.meshgrid(torch.arange(-100, 100), torch.arange(200), indexing="ij")
    noise = uniform(seeds.flatten(), positions.flatten())
    assert noise.unique().numel() == noise.numel()
    assert noise.min() >= 0
    assert noise.max() < 1
    counts = torch.histc(noise.float(), 100, 0, 1)
    assert ((counts - 400) ** 2 / 400).sum() < 160  # 99 degrees of freedom: once in 10,000
    grid = noise.view(200, 200)
    for shifted in (grid[1:] - grid[:-1], grid[:, 1:] - grid[:, :-1]):
        assert abs(shifted.mean()) < 0.01
    assert abs(torch.corrcoef(torch.stack((grid[:-1].flatten(), grid[1:].flatten())))[0, 1]) < 0.02
