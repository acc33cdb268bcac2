"""The C++ sampler against the op that it takes the place of, for every instruction set."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.gpu.host.library import HostLibrary
from pipeline.gpu.host.sampling import HostSampler
from pipeline.gpu.noise import uniform
from pipeline.gpu.sampling import SamplingOp, SamplingRows
from tests.gpu.test_sampling import random_rows, rows_of


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    vocab=st.one_of(st.integers(2, 2000), st.sampled_from([255, 256, 257, 4096, 9001])),
    spread=st.sampled_from([1.0, 3.0, 30.0]),
    is_coarse=st.booleans(),
)
def test_both_ops_choose_alike(
    library: HostLibrary, seed: int, vocab: int, spread: float, is_coarse: bool
) -> None:
    """Their sums are rounded otherwise: noise within a millionth of a boundary may fall on either side."""
    logits = torch.randn(16, vocab, generator=torch.Generator().manual_seed(seed)) * spread
    logits = logits.round() if is_coarse else logits
    rows = random_rows(16, seed)
    assert (HostSampler(library, 2)(logits, rows) != SamplingOp()(logits, rows)).sum() <= 1


LARGE = 49_152
SAMPLED_EVERY = 18
"""Of so many vectors of 16 logits of a row of LARGE, nucleus.h looks at one first."""


def normal(spread: float) -> torch.Tensor:
    return torch.randn(4, LARGE, generator=torch.Generator().manual_seed(1)) * spread


def with_a_sure_token() -> torch.Tensor:
    logits = normal(0.7)
    logits[:, 1000] = 20.0
    return logits


def heavy_headed() -> torch.Tensor:
    """The n-th most probable token weighs 1 / n."""
    order = torch.randperm(LARGE, generator=torch.Generator().manual_seed(2))
    return -(1.0 + order).log().expand(4, LARGE).contiguous()


def unlike_what_is_sampled(difference: float) -> torch.Tensor:
    logits = normal(0.7)
    logits.view(4, -1, 16)[:, ::SAMPLED_EVERY] += difference
    return logits


def with_few_allowed() -> torch.Tensor:
    logits = torch.full((4, LARGE), -torch.inf)
    logits[:, 16:1000:7] = normal(2.5)[:, 16:1000:7]
    return logits


ROWS = {
    "all alike": lambda: normal(0.0),
    "flat": lambda: normal(0.7),
    "steep": lambda: normal(2.5),
    "in order": lambda: normal(2.5).sort(dim=-1).values,
    "sure": with_a_sure_token,
    "heavy-headed": heavy_headed,
    "sampled too high": lambda: unlike_what_is_sampled(5.0),
    "sampled too low": lambda: unlike_what_is_sampled(-5.0),
    "nearly all masked": with_few_allowed,
}


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 0.9), (0.3, 0.45), (2.0, 0.999)])
@pytest.mark.parametrize("kind", ROWS)
def test_the_nucleus_of_a_large_vocabulary_is_cut_where_it_ends(
    library: HostLibrary, kind: str, temperature: float, top_p: float
) -> None:
    """Exactly: the token in whose piece of the mass, best first, the noise falls; in float64."""
    logits, rows = ROWS[kind](), rows_of(4, temperature=temperature, top_p=top_p)
    scaled = logits.double() / rows.temperature[:, None]
    weights, ids = torch.softmax(scaled, -1).sort(dim=-1, descending=True, stable=True)
    mass = weights.cumsum(-1)
    kept = mass.gather(1, (mass < rows.top_p[:, None]).sum(-1, keepdim=True))
    target = uniform(rows.seed, rows.position)[:, None] * kept
    chosen = HostSampler(library, 2)(logits, rows)
    rank = (ids == chosen[:, None]).nonzero()[:, 1, None]
    end, begin = mass.gather(1, rank), mass.gather(1, rank) - weights.gather(1, rank)
    assert (target >= begin - 1e-6).all() and (target <= end + 1e-6).all()


@pytest.mark.parametrize("kind", ROWS)
def test_a_draw_from_all_of_a_large_vocabulary(library: HostLibrary, kind: str) -> None:
    """By id, in float64."""
    logits, rows = ROWS[kind](), rows_of(4)
    weights = torch.softmax(logits.double(), -1)
    mass = weights.cumsum(-1)
    chosen = HostSampler(library, 2)(logits, rows)[:, None]
    end, begin = mass.gather(1, chosen), mass.gather(1, chosen) - weights.gather(1, chosen)
    target = uniform(rows.seed, rows.position)[:, None]
    assert (target >= begin - 1e-6).all() and (target <= end + 1e-6).all()


@pytest.mark.parametrize("top_k", [1, 50, 700, 5000, 49_152])
def test_the_best_of_a_large_vocabulary(library: HostLibrary, top_k: int) -> None:
    """Where all of the best lie side by side as where they are far apart."""
    logits = torch.randn(32, 49_152, generator=torch.Generator().manual_seed(2))
    logits[::2] = logits[::2].sort(dim=-1).values
    chosen = HostSampler(library, 2)(logits, rows_of(32, temperature=50.0, top_k=top_k))
    rank = (logits > logits.gather(1, chosen[:, None])).sum(-1)
    assert (rank < top_k).all() and rank.float().mean() == pytest.approx(top_k / 2, rel=0.3, abs=0.5)


def test_a_row_without_a_number_gives_some_token(library: HostLibrary) -> None:
    logits = torch.full((3, 300), torch.nan)
    rows = SamplingRows(
        torch.tensor([0.0, 1.0, 1.0]),
        torch.tensor([0, 0, 5]),
        torch.tensor([1.0, 0.5, 1.0]),
        torch.arange(3),
        torch.arange(3),
    )
    chosen = HostSampler(library, 1)(logits, rows)
    assert ((chosen >= 0) & (chosen < 300)).all()
