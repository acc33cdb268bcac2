"""The device half alone: what it can choose."""

import torch

from examples.min_p.min_p import MinPSampling
from examples.min_p.stage import MinPOptions
from pipeline.gpu.sampling import SamplingRows


def chosen(probs: list[float], top_k: int = 0) -> set[int]:
    num_rows = 300
    rows = SamplingRows(
        temperature=torch.ones(num_rows),
        top_k=torch.full((num_rows,), top_k),
        top_p=torch.ones(num_rows),
        seed=torch.arange(num_rows),
        position=torch.zeros(num_rows, dtype=torch.int64),
    )
    return set(
        MinPSampling(MinPOptions(min_p=0.1))(torch.tensor(probs).log().expand(num_rows, -1), rows).tolist()
    )


def test_tokens_below_a_fraction_of_the_best_are_never_chosen() -> None:
    assert chosen([0.5, 0.3, 0.15, 0.045, 0.005]) == {0, 1, 2}


def test_top_k_still_holds() -> None:
    assert chosen([0.5, 0.3, 0.15, 0.045, 0.005], top_k=2) == {0, 1}


def test_a_flat_distribution_is_not_cut_at_the_candidates() -> None:
    assert max(chosen([1 / 2000] * 2000)) > 1500
