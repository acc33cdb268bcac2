"""The rules of each slot's logits, in host memory, and the columns that a step's rows make of them.

Which rows have rules changes when sequences come and go, not from token to token: what was made for the rows
of one step is used again for the next with the same.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.gpu.kv.contexts import Ints
from pipeline.gpu.logit_rules import ANY
from pipeline.gpu.sampling_columns import Columns
from pipeline.gpu.seen_tokens import TAIL
from pipeline.messages import SamplingParams

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


class _Rules(NamedTuple):
    """Of one slot."""

    ids: Ints
    """What `biases` are added to, and"""
    biases: Floats
    end_ids: Ints
    """banned before min_tokens."""
    mask: Words | None
    bad_ids: Ints
    bad_prefixes: Words
    penalties: tuple[float, float, float]
    """Repetition, frequency, presence."""
    typical_p: float
    min_p: float


class SlotRules:
    """[max_num_seqs] slots, of which some have rules."""

    def __init__(self, max_num_seqs: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rules: dict[int, _Rules] = {}
        self._has_rules = np.zeros(max_num_seqs, dtype=bool)
        self._first_end = np.zeros(max_num_seqs, dtype=np.int64)
        """Position of the first token that may end it."""
        self._made_for: tuple[bytes, ...] = ()
        self._made: Columns = {}

    def admit(self, slot: int, sampling: SamplingParams, num_prompt_tokens: int) -> None:
        """Replace what is there of `slot`."""
        self._made_for = ()
        has_rules = _has_rules(sampling)
        self._has_rules[slot] = has_rules
        self._first_end[slot] = num_prompt_tokens + sampling.min_tokens
        if has_rules:
            self._rules[slot] = _rules_of(sampling, self._vocab_size)
        else:
            self._rules.pop(slot, None)

    def columns(self, slots: Ints, positions: Ints, places: Ints) -> Columns:
        """Of rows in these slots [R], that sample the token after `positions` [R]: fields of LogitRules, none
        where no row has rules.

        Args:
            places: [max_num_seqs], of slots: SeenTokens.places.
        """
        has_rules = self._has_rules[slots]
        if not has_rules.any():
            return {}
        is_early = positions + 1 < self._first_end[slots]
        made_for = (slots.tobytes(), is_early.tobytes())
        if made_for != self._made_for:
            self._made, self._made_for = self._make(slots, has_rules, is_early, places), made_for
        return self._made

    def _make(self, slots: Ints, has_rules: Flags, is_early: Flags, places: Ints) -> Columns:
        rows = np.flatnonzero(has_rules)
        rules = [self._rules[slot] for slot in slots[rows].tolist()]
        columns: Columns = {"rows": rows, "others": np.flatnonzero(~has_rules)}
        columns |= _bias_columns(rules, is_early[rows].tolist())
        columns |= _count_columns(rules, places[slots[rows]])
        if any(each.mask is not None for each in rules):
            every = np.full(-(-self._vocab_size // 32), -1, dtype=np.int32)
            columns["mask"] = np.stack([every if each.mask is None else each.mask for each in rules])
        if any(each.typical_p < 1 for each in rules):
            columns["typical_p"] = np.array([each.typical_p for each in rules], dtype=np.float32)
        if any(each.min_p > 0 for each in rules):
            columns["min_p"] = np.array([each.min_p for each in rules], dtype=np.float32)
        return columns


def mask_of(allowed_ids: tuple[int, ...] | list[int], vocab_size: int) -> Words:
    """[ceil(V / 32)] int32, as LogitRules.mask has it."""
    is_allowed = np.zeros(-(-vocab_size // 32) * 32, dtype=bool)
    is_allowed[list(allowed_ids)] = True
    return np.packbits(is_allowed, bitorder="little").view("<i4").astype(np.int32)


def _has_rules(sampling: SamplingParams) -> bool:
    return (
        sampling.follows_tokens
        or bool(sampling.logit_bias or sampling.allowed_token_ids or sampling.bad_token_ids)
        or bool(sampling.min_tokens and sampling.end_ids)
        or sampling.min_p > 0
        or sampling.typical_p < 1
    )


def _rules_of(sampling: SamplingParams, vocab_size: int) -> _Rules:
    single = [each[0] for each in sampling.bad_token_ids if len(each) == 1]
    longer = [each for each in sampling.bad_token_ids if len(each) > 1]
    prefixes = np.full((len(longer), TAIL), ANY, dtype=np.int32)
    for row, each in enumerate(longer):
        prefixes[row, TAIL - len(each) + 1 :] = each[:-1]
    biases = [value for _, value in sampling.logit_bias] + [-np.inf] * len(single)
    return _Rules(
        ids=np.array([token_id for token_id, _ in sampling.logit_bias] + single, dtype=np.int64),
        biases=np.array(biases, dtype=np.float32),
        end_ids=np.array(sampling.end_ids, dtype=np.int64),
        mask=mask_of(sampling.allowed_token_ids, vocab_size) if sampling.allowed_token_ids else None,
        bad_ids=np.array([each[-1] for each in longer], dtype=np.int64),
        bad_prefixes=prefixes,
        penalties=(sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty),
        typical_p=sampling.typical_p,
        min_p=sampling.min_p,
    )


def _bias_columns(rules: list[_Rules], is_early: list[bool]) -> Columns:
    ends = [each.end_ids if early else each.end_ids[:0] for each, early in zip(rules, is_early, strict=True)]
    counts = [len(each.ids) + len(end) for each, end in zip(rules, ends, strict=True)]
    if not any(counts):
        return {}
    ids = [part for each, end in zip(rules, ends, strict=True) for part in (each.ids, end)]
    biases = [
        part
        for each, end in zip(rules, ends, strict=True)
        for part in (each.biases, np.full(len(end), -np.inf, dtype=np.float32))
    ]
    return {
        "bias_at": np.repeat(np.arange(len(rules)), counts),
        "bias_ids": np.concatenate(ids),
        "biases": np.concatenate(biases),
    }


def _count_columns(rules: list[_Rules], places: Ints) -> Columns:
    counted = np.flatnonzero(places >= 0)
    if not counted.size:
        return {}
    penalties = np.array([rules[at].penalties for at in counted.tolist()], dtype=np.float32)
    columns: Columns = {"counted_at": counted, "places": places[counted]}
    for name, column in zip(("repetition", "frequency", "presence"), penalties.T, strict=True):
        columns[name] = np.ascontiguousarray(column)
    num_bad = [len(each.bad_ids) for each in rules]
    if any(num_bad):
        columns["bad_at"] = np.repeat(np.arange(len(rules)), num_bad)
        columns["bad_places"] = np.repeat(places, num_bad)
        columns["bad_ids"] = np.concatenate([each.bad_ids for each in rules])
        columns["bad_prefixes"] = np.concatenate([each.bad_prefixes for each in rules])
    return columns
