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


@pytest.mark.parametrize("spread", [0.0, 0.7, 2.5])
def test_the_nucleus_of_a_large_vocabulary_is_cut_where_it_ends(library: HostLibrary, spread: float) -> None:
    """Exactly: the token in whose piece of the mass, best first, the noise falls; in float64."""
    logits = torch.randn(8, 49_152, generator=torch.Generator().manual_seed(1)) * spread
    rows = rows_of(8, top_p=0.9)
    weights, ids = torch.softmax(logits.double(), -1).sort(dim=-1, descending=True, stable=True)
    mass = weights.cumsum(-1)
    kept = mass.gather(1, (mass < 0.9).sum(-1, keepdim=True))
    target = uniform(rows.seed, rows.position)[:, None] * kept
    chosen = HostSampler(library, 2)(logits, rows)
    rank = (ids == chosen[:, None]).nonzero()[:, 1, None]
    end, begin = mass.gather(1, rank), mass.gather(1, rank) - weights.gather(1, rank)
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
