"""Percentiles by length, so that many short requests cannot hide what happens to a few long ones."""

from collections.abc import Callable

import msgspec
import numpy as np

from loadgen.record import Record
from loadgen.summary import Spread, spread

_STEP = 4
_FIRST = 16
_TAIL = 99
"""The percentile of the lengths above which the long tail begins."""
_MIN_FOR_TAIL = 100


class Bucket(msgspec.Struct, frozen=True):
    """The finished requests of some lengths."""

    label: str
    count: int
    ttft: Spread | None
    tpot: Spread | None
    e2e: Spread | None


def by_input(records: list[Record]) -> list[Bucket]:
    """By prompt length in tokens, the server's count; shortest first, the long tail last and once more."""
    return _buckets(records, lambda record: record.input_tokens or record.planned_input or 0)


def by_output(records: list[Record]) -> list[Bucket]:
    """By answer length in tokens; as `by_input`."""
    return _buckets(records, lambda record: record.num_output)


def _buckets(records: list[Record], length: Callable[[Record], int]) -> list[Bucket]:
    """Edges are powers of 4; empty buckets are left out."""
    finished = [(length(record), record) for record in records if record.is_finished]
    if not finished:
        return []
    found = []
    low, high = 1, _FIRST
    while low <= max(size for size, _ in finished):
        inside = [record for size, record in finished if low <= size <= high]
        if inside:
            found.append(_bucket(f"{low:,} to {high:,}", inside))
        low, high = high + 1, high * _STEP
    return [*found, *_tail(finished)]


def _tail(finished: list[tuple[int, Record]]) -> list[Bucket]:
    """The longest 1 %, if there are enough requests and their lengths differ."""
    lengths = [size for size, _ in finished]
    edge = float(np.percentile(lengths, _TAIL))
    if len(finished) < _MIN_FOR_TAIL or min(lengths) == max(lengths):
        return []
    inside = [record for size, record in finished if size >= edge]
    return [_bucket(f"longest 1 %: {int(np.ceil(edge)):,} and more", inside)]


def _bucket(label: str, records: list[Record]) -> Bucket:
    return Bucket(
        label=label,
        count=len(records),
        ttft=spread(record.ttft_s for record in records),
        tpot=spread(record.tpot_s for record in records),
        e2e=spread(record.e2e_s for record in records),
    )
