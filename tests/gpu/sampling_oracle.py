"""What sampling must choose, written down plainly in float64: one row, one token after the other."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pipeline.gpu.noise import uniform
from pipeline.messages import SamplingParams

Floats = npt.NDArray[np.float64]


class History(NamedTuple):
    prompt: list[int]
    output: list[int]

    @property
    def position(self) -> int:
        """Of the last token."""
        return len(self.prompt) + len(self.output) - 1


def ruled(logits: Floats, sampling: SamplingParams, history: History) -> Floats:
    """Logits after everything but temperature and what filters by probability."""
    logits = logits.copy()
    if sampling.allowed_token_ids:
        logits[[k for k in range(len(logits)) if k not in sampling.allowed_token_ids]] = -np.inf
    allowed = logits.copy()
    for bad in sampling.bad_token_ids:
        if len(bad) == 1 or tuple(history.output[-(len(bad) - 1) :]) == bad[:-1]:
            logits[bad[-1]] = -np.inf
    if len(history.output) < sampling.min_tokens:
        logits[list(sampling.end_ids)] = -np.inf
    for token_id, bias in sampling.logit_bias:
        logits[token_id] += bias
    if np.isneginf(logits).all():
        logits = allowed
    for token_id in range(len(logits)):
        count = history.output.count(token_id)
        if count or token_id in history.prompt:
            factor = sampling.repetition_penalty
            logits[token_id] = (
                logits[token_id] / factor if logits[token_id] > 0 else logits[token_id] * factor
            )
        logits[token_id] -= sampling.frequency_penalty * count + sampling.presence_penalty * (count > 0)
    return logits


def probabilities(logits: Floats, sampling: SamplingParams) -> Floats:
    """What is left after temperature and every filter, renormalised after each."""
    probs = _softmax(logits / sampling.temperature)
    if sampling.typical_p < 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            surprise = -np.log(probs)
            mean = np.nansum(probs * surprise)
        probs = _first(probs, np.argsort(np.abs(surprise - mean), kind="stable"), sampling.typical_p)
    if sampling.min_p > 0:
        probs = _normed(np.where(probs >= sampling.min_p * probs.max(), probs, 0))
    order = np.argsort(-probs, kind="stable")
    if sampling.top_k:
        probs[order[sampling.top_k :]] = 0
        probs = _normed(probs)
    return _first(probs, order, sampling.top_p) if sampling.top_p < 1 else probs


def expected(logits: Floats, sampling: SamplingParams, history: History) -> tuple[int, float]:
    """The token, and how much of the mass the draw is away from another one."""
    logits = ruled(logits, sampling, history)
    if sampling.temperature == 0:
        best = np.sort(logits)[-2:]
        return int(logits.argmax()), float(best[1] - best[0]) if len(best) > 1 else np.inf
    probs = probabilities(logits, sampling)
    is_filtered = sampling.top_k > 0 or sampling.top_p < 1
    order = np.argsort(-logits, kind="stable") if is_filtered else np.arange(len(probs))
    mass = probs[order].cumsum()
    noise = uniform(torch.tensor([sampling.seed]), torch.tensor([history.position])).item()
    place = int((mass <= noise).sum())
    return int(order[place]), float(np.abs(mass - noise).min())


def _first(probs: Floats, order: npt.NDArray[np.int64], share: float) -> Floats:
    """The fewest in this order that have the share."""
    kept = order[: int((probs[order].cumsum() < share).sum()) + 1]
    out = np.zeros_like(probs)
    out[kept] = probs[kept]
    return _normed(out)


def _softmax(x: Floats) -> Floats:
    return _normed(np.exp(x - x.max()))


def _normed(x: Floats) -> Floats:
    normed: Floats = x / x.sum()
    return normed
