"""The device half of the sample stage: logits to token ids.

Rows with rules (gpu.logit_rules) are chosen for apart from the others, of logits that the rules have changed:
a step in which nobody has any pays nothing. A row's token depends on its own logits, parameters, seed and
position alone, never on its neighbours.
"""

from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from pipeline.gpu.logit_rules import LogitRules
from pipeline.gpu.noise import uniform

CANDIDATES = (64, 1024)
"""How many of the most probable tokens a filtered row is tried with before its whole vocabulary is sorted."""


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Sampling columns of the R rows that yield a token."""

    temperature: Tensor
    """[R] fp32; 0 is greedy."""
    top_k: Tensor
    """[R] int64; 0 is off."""
    top_p: Tensor
    """[R] fp32; 1 is off."""
    seed: Tensor
    """[R] int64."""
    position: Tensor
    """[R] int64: of the token whose logits these are, in its sequence."""
    rules: LogitRules | None = None
    """Of those rows that have any; None: no row has."""

    def select(self, indices: Tensor) -> "SamplingRows":
        """Some of the rows, as if they had no rules."""
        return SamplingRows(
            self.temperature[indices],
            self.top_k[indices],
            self.top_p[indices],
            self.seed[indices],
            self.position[indices],
        )


class SamplingOp:
    """Greedy, temperature, top-k, top-p. To filter otherwise, override `is_filtered` and `num_kept`.

    Filtered rows choose among the first of their tokens in order of (logit falling, id rising): the top k,
    then of those the fewest that have mass top_p (Holtzman et al. 2020), at least one.

    Args:
        options: those of the sample stage that names this class; the built-in stage has none.
    """

    def __init__(self, options: msgspec.Struct | None = None) -> None:
        self.options = options

    def __call__(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        """[R, V] (any float dtype, not changed) -> [R] int64 token ids."""
        if rows.rules is None:
            return self.choose(logits, rows)
        return self._choose_by_rules(logits, rows, rows.rules)

    def choose(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        """The same, whatever rules the rows have."""
        token_ids = logits.max(-1).indices  # the first of equals; four times as fast as argmax in bf16
        (random,) = torch.nonzero(rows.temperature > 0, as_tuple=True)
        if random.numel():
            token_ids[random] = self._sample(logits[random], rows.select(random))
        return token_ids

    def is_filtered(self, rows: SamplingRows) -> Tensor:
        """[R] bool: which rows num_kept may cut."""
        return (rows.top_k > 0) | (rows.top_p < 1)

    def num_kept(self, probs: Tensor, rows: SamplingRows) -> Tensor:
        """How many of the most probable tokens stay.

        Args:
            probs: [R, K] fp32, falling, after temperature: the K most probable; K > top_k unless it is V.
            rows: their columns.

        Returns:
            [R] int64 from 1 to K. A row that keeps all K is asked again with a larger K, up to V.
        """
        num_candidates = probs.shape[1]
        limit = torch.where(rows.top_k > 0, rows.top_k, num_candidates).clamp(max=num_candidates)
        mass = _keep(probs, limit).cumsum(-1)
        # with k, top_p is of the mass that top-k leaves; without, of all, which the candidates may not hold
        total = torch.where(rows.top_k > 0, mass[:, -1], 1.0)
        nucleus = (mass < (rows.top_p * total)[:, None]).sum(-1) + 1
        return torch.where(rows.top_p < 1, torch.minimum(nucleus, limit), limit)

    def apply_rules(self, rules: LogitRules, logits: Tensor, temperature: Tensor) -> Tensor:
        """[M, V] fp32 logits of the rows with rules, which may be overwritten, and their temperature [M]."""
        return rules.apply(logits, temperature)

    def _choose_by_rules(self, logits: Tensor, rows: SamplingRows, rules: LogitRules) -> Tensor:
        token_ids = torch.empty_like(rows.position)
        if rules.others.shape[0]:
            token_ids[rules.others] = self.choose(logits[rules.others], rows.select(rules.others))
        ruled = rules.rows
        changed = self.apply_rules(rules, logits[ruled].float(), rows.temperature[ruled])
        token_ids[ruled] = self.choose(changed, rows.select(ruled))
        return token_ids

    def _sample(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        # the maximum goes first: a tiny temperature must not overflow
        scaled = logits.float()
        scaled = (scaled - scaled.amax(-1, keepdim=True)) / rows.temperature[:, None]
        probs = torch.softmax(scaled, -1)
        noise = uniform(rows.seed, rows.position)
        is_filtered = self.is_filtered(rows)
        token_ids = torch.empty_like(rows.position)
        (plain,) = torch.nonzero(~is_filtered, as_tuple=True)
        if plain.numel():
            token_ids[plain] = _draw(probs[plain], noise[plain])
        (remaining,) = torch.nonzero(is_filtered, as_tuple=True)
        for num in _candidate_counts(rows.top_k, logits.shape[1]):
            if not remaining.numel():
                break
            values, ids = _most_probable(logits[remaining], num)
            top_probs = probs[remaining].gather(1, ids)
            kept = self.num_kept(top_probs, rows.select(remaining))
            chosen = _draw(_keep(top_probs, kept), noise[remaining])
            token_ids[remaining] = ids.gather(1, chosen[:, None])[:, 0]
            # sure only if what is kept ends above the last candidate: else tokens outside are as probable
            is_unsure = values.gather(1, kept[:, None] - 1)[:, 0] <= values[:, -1]
            remaining = remaining[is_unsure]
        return token_ids


def _candidate_counts(top_k: Tensor, vocab_size: int) -> list[int]:
    at_least = int(top_k.max()) + 1
    return [*(num for num in CANDIDATES if at_least <= num < vocab_size), vocab_size]


def _most_probable(logits: Tensor, num: int) -> tuple[Tensor, Tensor]:
    # [R, V] -> values, ids [R, num] in order of (value falling, id rising)
    if num == logits.shape[1]:
        values, ids = logits.sort(dim=-1, descending=True, stable=True)
        return values, ids
    ids = logits.topk(num, sorted=False).indices.sort(-1).values
    values, order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _keep(weights: Tensor, kept: Tensor) -> Tensor:
    # all but the first kept [R] of weights [R, K] become 0
    ranks = torch.arange(weights.shape[1], device=weights.device)
    return weights.masked_fill(ranks >= kept[:, None], 0)


def _draw(weights: Tensor, noise: Tensor) -> Tensor:
    """Inverse cumulative distribution: weights [R, K] >= 0 of any sum, noise [R] in [0, 1) -> [R] int64.

    In float64, so that the noise times the sum stays below the sum and never lands on a weight of 0.
    """
    mass = weights.cumsum(-1, dtype=torch.float64)
    found = torch.searchsorted(mass, (noise * mass[:, -1])[:, None], right=True)[:, 0]
    return found.clamp(max=weights.shape[1] - 1)
