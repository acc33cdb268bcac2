"""How probable the tokens of those rows were that ask to be told."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.gpu.kv.contexts import Ints
from pipeline.messages import MAX_LOGPROBS, Logprobs, StepPlan

AT_ONCE = 32
"""Rows whose whole distribution is there at a time."""


class AskedLogprobs(NamedTuple):
    """The N of a step's R sampling rows that ask."""

    rows: Ints
    """[N], rising, in host memory, and"""
    rows_on_device: Tensor
    """[N] int64."""
    nums: list[int]
    """How many alternatives each wants."""


class AskedScores(NamedTuple):
    """The S tokens of prompts that a step is asked about, whose logits follow those of the R."""

    token_ids: Tensor
    """[S] int64, on the device."""
    request_ids: list[int]
    nums: list[int]


def asked_scores(plan: StepPlan, put: Callable[[Ints], Tensor]) -> AskedScores | None:
    """`put`: to the device. None: nothing is asked."""
    if not plan.scored:
        return None
    scored = plan.scored
    return AskedScores(
        put(np.array([token_id for each in scored for token_id in each.token_ids])),
        [plan.request_ids[each.row] for each in scored for _ in each.token_ids],
        [each.num_top for each in scored for _ in each.token_ids],
    )


class DeviceLogprobs(NamedTuple):
    """Still on the device."""

    token_ids: Tensor
    """[N] int64: chosen, and"""
    values: Tensor
    """[N] fp32: what they have."""
    top_ids: Tensor
    """[N, K] int64, and"""
    top_values: Tensor
    """[N, K] fp32: the most probable in order of (logprob falling, id rising); K = MAX_LOGPROBS, or V."""

    def to_message(self, request_ids: list[int], nums: list[int]) -> Logprobs:
        """Waits for the device. For each of the N whose it is, and how many alternatives it wants."""
        tops = zip(nums, self.top_ids.tolist(), self.top_values.tolist(), strict=True)
        top_ids, top_values = [], []
        for num, ids, values in tops:
            top_ids.append(ids[:num])
            top_values.append(values[:num])
        return Logprobs(request_ids, self.token_ids.tolist(), self.values.tolist(), top_ids, top_values)


def scores_of(logits: Tensor, asked: AskedScores) -> DeviceLogprobs:
    """Of logits [S, V]. Nothing is waited for."""
    rows = torch.arange(len(asked.token_ids), device=logits.device)
    return logprobs_of(logits, asked.token_ids, rows)


def logprobs_of(logits: Tensor, token_ids: Tensor, rows: Tensor) -> DeviceLogprobs:
    """Of the rows [N] of logits [R, V] and of the tokens [R] chosen of them. Nothing is waited for."""
    parts = [_part(logits[part].float(), token_ids[part]) for part in torch.split(rows, AT_ONCE)]
    return DeviceLogprobs(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _part(logits: Tensor, token_ids: Tensor) -> DeviceLogprobs:
    log_probs = torch.log_softmax(logits, -1)
    num = min(MAX_LOGPROBS, logits.shape[1])
    ids = log_probs.topk(num, sorted=False).indices.sort(-1).values
    values, order = log_probs.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    chosen = log_probs.gather(1, token_ids[:, None])[:, 0]
    return DeviceLogprobs(token_ids, chosen, ids.gather(1, order), values)
