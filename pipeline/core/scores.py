"""Scores: how probable the tokens of a prompt are, as steps tell of them, part by part."""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

from pipeline.core.sequence import Sequence
from pipeline.messages import NO_VALUE, Logprobs


class Scoring(NamedTuple):
    """What a step in flight will tell of a sequence."""

    sequence: Sequence
    epoch: int
    first: int
    """The position of the first token that it tells of."""
    num_tokens: int


class Score(NamedTuple):
    """Of one token; natural logarithms."""

    token_id: int
    value: float
    top_ids: list[int]
    top_values: list[float]


def scores_of(scoring: Iterable[Scoring], told: Logprobs) -> Iterator[tuple[Sequence, list[Score]]]:
    """What is new in what a step has told. Of who was preempted meanwhile it tells again later.

    The first token of a prompt comes after nothing: it has no value, and goes with the second one.
    """
    columns = (told.token_ids, told.values, told.top_ids, told.top_values)
    scores = map(Score, *columns)
    for sequence, epoch, first, num_tokens in scoring:
        part = list(islice(scores, num_tokens))
        if sequence.epoch != epoch or sequence.slot < 0:
            continue
        if first == 1 and sequence.num_scored == 0:
            part = list(chain([Score(sequence.token_ids[0], NO_VALUE, [], [])], part))
            first = 0
        part = part[sequence.num_scored - first :]
        sequence.num_scored += len(part)
        if part:
            yield sequence, part
