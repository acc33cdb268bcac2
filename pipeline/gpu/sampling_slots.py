"""The sampling columns of each slot, in host memory, and what the device counts of its tokens."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.gpu.kv.contexts import Ints
from pipeline.gpu.logit_rules import LogitRules
from pipeline.gpu.logprobs import AskedLogprobs
from pipeline.gpu.sampling import SamplingRows
from pipeline.gpu.sampling_columns import RULES, Columns
from pipeline.gpu.seen_tokens import SeenTokens
from pipeline.gpu.slot_rules import SlotRules
from pipeline.messages import Admitted

NOT_ASKED = -1


class SamplingSlots:
    """[max_num_seqs] of each column. Who is admitted to a slot replaces what is there.

    For a step: `admit`, `columns`, their copy to the device, `rows` of that, and `remember` what was sampled,
    in the order in which the device does it.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._temperature = np.zeros(max_num_seqs, dtype=np.float32)
        self._top_k = np.zeros(max_num_seqs, dtype=np.int64)
        self._top_p = np.ones(max_num_seqs, dtype=np.float32)
        self._seed = np.zeros(max_num_seqs, dtype=np.int64)
        self._num_logprobs = np.full(max_num_seqs, NOT_ASKED, dtype=np.int64)
        self._rules = SlotRules(max_num_seqs, vocab_size)
        self._seen = SeenTokens(max_num_seqs, vocab_size, device)

    def admit(self, admitted: Iterable[Admitted]) -> None:
        for each in admitted:
            slot, sampling = each.slot, each.sampling
            self._temperature[slot] = sampling.temperature
            self._top_k[slot] = sampling.top_k
            self._top_p[slot] = sampling.top_p
            self._seed[slot] = _as_int64(sampling.seed)
            self._num_logprobs[slot] = NOT_ASKED if sampling.logprobs is None else sampling.logprobs
            self._rules.admit(slot, sampling, each.num_prompt_tokens)
            if sampling.counts_tokens:
                self._seen.admit(slot, each.token_ids, each.num_prompt_tokens)
            else:
                self._seen.leave(slot)

    def columns(self, slots: Ints, positions: Ints) -> Columns:
        """Of rows in these slots [R], that sample the token after `positions` [R].

        Those of LogitRules, under RULES, are there only where a row of the step has rules; they must not be
        changed. All are to be copied to the device for `rows`.
        """
        columns: Columns = {
            "temperature": self._temperature[slots],
            "top_k": self._top_k[slots],
            "top_p": self._top_p[slots],
            "seed": self._seed[slots],
            "position": positions,
        }
        rules = self._rules.columns(slots, positions, self._seen.places)
        return columns | {RULES + name: column for name, column in rules.items()}

    def rows(self, columns: Mapping[str, Tensor]) -> SamplingRows:
        """The same columns on the device as the sampling op takes them."""
        rules: dict[str, Tensor] = {
            name.removeprefix(RULES): each for name, each in columns.items() if name.startswith(RULES)
        }
        plain: dict[str, Any] = {name: each for name, each in columns.items() if not name.startswith(RULES)}
        rows = SamplingRows(**plain)
        if not rules:
            return rows
        if "places" in rules:
            rules |= {"counts": self._seen.counts, "tails": self._seen.tails}
        return replace(rows, rules=LogitRules(**rules))

    def asked_logprobs(self, slots: Ints) -> Ints:
        """Which of the rows in these slots [R] ask for logprobs: [N]."""
        return np.flatnonzero(self._num_logprobs[slots] != NOT_ASKED)

    def asked(self, slots: Ints, rows: Ints, rows_on_device: Tensor) -> AskedLogprobs:
        """`rows`: what asked_logprobs has told of `slots`, not empty."""
        return AskedLogprobs(rows, rows_on_device, self._num_logprobs[slots[rows]].tolist())

    def remember(self, rows: SamplingRows, token_ids: Tensor) -> None:
        """These tokens [R] were sampled for `rows`."""
        rules = rows.rules
        if rules is not None and rules.counted_at is not None:
            assert rules.places is not None
            self._seen.add(rules.places, token_ids[rules.rows[rules.counted_at]])


def _as_int64(seed: int) -> int:
    # any Python int to its low 64 bits, as two's complement
    low = seed & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low
