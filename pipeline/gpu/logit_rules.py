"""What is done to the logits of the rows that ask for it, before a token is chosen of them.

In this order: allowed ids, bans (bad words, ends before min_tokens) and bias, penalties, typical_p, min_p;
see messages.SamplingParams. The result is logits again, -inf where a token is out, so whatever chooses by
temperature, top-k and top-p need not know of any of it. A row is changed by its own columns alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

AT_ONCE = 16
"""Rows that are worked on at a time, so that what it takes does not grow with the step: sorting takes some 40
bytes a token of the vocabulary, each row."""
ANY = -1
"""In bad_prefixes: any token. In tails: there is none yet, which no prefix asks for."""


@dataclass(frozen=True, slots=True)
class LogitRules:
    """Of the M of a step's R rows that have any. An `at` column says which of the M its entries belong to;
    what no row of the step asks for is None. All but `counts` and `tails` come from the host.
    """

    rows: Tensor
    """[M] int64, rising: which of the R, and"""
    others: Tensor
    """[R - M] int64: the rest."""
    mask: Tensor | None = None
    """[M, ceil(V / 32)] int32: token 32 w + i may be chosen where bit i of word w is 1. For allowed ids and
    for grammars; all ones for rows without."""
    bias_at: Tensor | None = None
    """[N] int64, and"""
    bias_ids: Tensor | None = None
    """[N] int64, and"""
    biases: Tensor | None = None
    """[N] fp32: what is added; -inf is a ban."""
    bad_at: Tensor | None = None
    """[N] int64,"""
    bad_places: Tensor | None = None
    """[N] int64,"""
    bad_prefixes: Tensor | None = None
    """[N, K] int32, and"""
    bad_ids: Tensor | None = None
    """[N] int64: this is banned where the row's tail ends in the prefix; filled up with ANY at the left."""
    counted_at: Tensor | None = None
    """[N] int64: rows whose tokens are counted,"""
    places: Tensor | None = None
    """[N] int64: where in `counts` and `tails`, and"""
    repetition: Tensor | None = None
    """[N] fp32; 1 is off."""
    frequency: Tensor | None = None
    """[N] fp32; 0 is off."""
    presence: Tensor | None = None
    """[N] fp32; 0 is off."""
    counts: Tensor | None = None
    """[P, V] int32: see gpu.seen_tokens."""
    tails: Tensor | None = None
    """[P, K] int32: the last output tokens of each, ANY where there are fewer."""
    typical_p: Tensor | None = None
    """[M] fp32; 1 is off."""
    min_p: Tensor | None = None
    """[M] fp32; 0 is off."""

    @property
    def has_mask_alone(self) -> bool:
        """All that is asked for is the mask."""
        rest = (self.bias_at, self.bad_at, self.counted_at, self.typical_p, self.min_p)
        return self.mask is not None and all(each is None for each in rest)

    def apply(self, logits: Tensor, temperature: Tensor) -> Tensor:
        """[M, V] fp32, which is overwritten, [M] -> [M, V] fp32."""
        self.allow(logits)
        logits = self.ban(logits)
        self.penalise(logits)
        return self.narrow(logits, temperature)

    def narrow(self, logits: Tensor, temperature: Tensor) -> Tensor:
        """typical_p and min_p, on [M, V] in place."""
        if self.typical_p is not None:
            keep_typical(logits, temperature, self.typical_p)
        if self.min_p is not None:
            keep_probable(logits, temperature, self.min_p)
        return logits

    def allow(self, logits: Tensor) -> None:
        """Only what `mask` allows is left of [M, V]."""
        if self.mask is not None:
            for part, mask in zip(torch.split(logits, AT_ONCE), torch.split(self.mask, AT_ONCE), strict=True):
                part.masked_fill_(~_bits(mask, logits.shape[1]), -torch.inf)

    def ban(self, logits: Tensor) -> Tensor:
        """Bias and bans on [M, V]. Where they leave nothing, those of the row are not heeded: a grammar may
        allow the end alone before min_tokens.
        """
        if self.bias_at is None and self.bad_at is None:
            return logits
        allowed = logits if self.mask is None else logits.clone()
        if self.bias_at is not None:
            assert self.bias_ids is not None and self.biases is not None
            logits.index_put_((self.bias_at, self.bias_ids), self.biases, accumulate=True)
        if self.bad_at is not None:
            self._ban_bad(logits)
        if self.mask is None:
            return logits
        is_empty = torch.isneginf(logits.amax(-1, keepdim=True))
        return torch.where(is_empty, allowed, logits)

    def _ban_bad(self, logits: Tensor) -> None:
        assert self.bad_places is not None and self.bad_prefixes is not None
        assert self.bad_at is not None and self.bad_ids is not None and self.tails is not None
        is_next = (self.bad_prefixes == ANY) | (self.bad_prefixes == self.tails[self.bad_places])
        ban = torch.where(is_next.all(-1), -torch.inf, 0.0)
        logits.index_put_((self.bad_at, self.bad_ids), ban, accumulate=True)

    def penalise(self, logits: Tensor) -> None:
        """Repetition, frequency and presence, on [M, V]."""
        if self.counted_at is None:
            return
        assert self.counts is not None and self.places is not None
        assert self.repetition is not None and self.frequency is not None and self.presence is not None
        columns = (self.counted_at, self.places, self.repetition, self.frequency, self.presence)
        for part in zip(*(torch.split(each, AT_ONCE) for each in columns), strict=True):
            at, places, *penalties = part
            logits[at] = penalised(logits[at], self.counts[places], *(each[:, None] for each in penalties))


def penalised(
    logits: Tensor, counts: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> Tensor:
    """[N, V], [N, V] as gpu.seen_tokens has them, [N, 1] each -> [N, V]."""
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(counts > 0, repeated, logits)
    num_output = counts >> 1
    logits -= frequency * num_output
    logits -= presence * (num_output > 0)
    return logits


def keep_typical(logits: Tensor, temperature: Tensor, typical_p: Tensor) -> None:
    """[M, V], in place, [M], [M]: of the tokens in order of (distance of their surprise from the mean, id)
    the fewest with mass typical_p (Meister et al. 2023), of the distribution at the row's temperature. Sorts.
    """
    columns = (logits, temperature, typical_p)
    for part in zip(*(torch.split(each, AT_ONCE) for each in columns), strict=True):
        _keep_typical(*part)


def _keep_typical(logits: Tensor, temperature: Tensor, typical_p: Tensor) -> None:
    log_probs = torch.log_softmax(_scaled(logits, temperature), -1)
    probs = log_probs.exp()
    mean = -(probs * log_probs).nansum(-1, keepdim=True)  # 0 * -inf of what is out
    order = (-log_probs - mean).abs().sort(dim=-1, stable=True).indices
    mass = probs.gather(-1, order).cumsum(-1, dtype=torch.float64)
    num_kept = (mass < typical_p[:, None].double()).sum(-1, keepdim=True) + 1
    is_off = ((typical_p >= 1) | (temperature <= 0))[:, None]
    ranks = torch.arange(order.shape[1], device=order.device)
    is_out = torch.zeros_like(logits, dtype=torch.bool)
    is_out.scatter_(-1, order, ~is_off & (ranks >= num_kept))
    logits.masked_fill_(is_out, -torch.inf)


def keep_probable(logits: Tensor, temperature: Tensor, min_p: Tensor) -> None:
    """[M, V], in place, [M], [M]: tokens with min_p of the best one's probability (Nguyen et al. 2024)."""
    depth = torch.where((min_p > 0) & (temperature > 0), -temperature * min_p.log(), torch.inf)
    logits.masked_fill_(logits < (logits.amax(-1) - depth)[:, None], -torch.inf)


def _scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    peak = logits.amax(-1, keepdim=True)
    return (logits - peak) / torch.where(temperature > 0, temperature, 1.0)[:, None]


def _bits(mask: Tensor, vocab_size: int) -> Tensor:
    """[M, ceil(V / 32)] int32 -> [M, V] bool."""
    shifts = torch.arange(32, dtype=torch.int32, device=mask.device)
    return ((mask[:, :, None] >> shifts) & 1).bool().flatten(1)[:, :vocab_size]
