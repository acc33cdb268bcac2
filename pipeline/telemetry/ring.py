"""A bounded ring of records, kept as bytes.

A record is a dozen to thirty Python ints of 32 bytes each, and the rings hold thousands: as objects they
would grow the process by tens of megabytes in its first ten minutes, which looks like a leak.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar, get_type_hints

import msgspec
from msgspec.structs import astuple

R = TypeVar("R", bound=msgspec.Struct)


class Ring(Generic[R]):
    """The latest `capacity` of them. Reading decodes what is asked for, some 2 us a record."""

    def __init__(self, kind: type[R], capacity: int) -> None:
        self._kind = kind
        self._encode = msgspec.msgpack.Encoder().encode
        fields = tuple(get_type_hints(kind).values())
        self._decode = msgspec.msgpack.Decoder(tuple.__class_getitem__(fields)).decode
        self._records: deque[bytes] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._records)

    def append(self, record: R) -> None:
        self._records.append(self._encode(astuple(record)))

    def latest(self, count: int | None = None) -> list[R]:
        """The last `count`, or all, oldest first."""
        return self._until(lambda _, num_kept: num_kept == count)

    def since(self, since_ns: int, time_of: Callable[[R], int]) -> list[R]:
        """Those at or after `since_ns`, oldest first; times rise along the ring."""
        return self._until(lambda record, _: time_of(record) < since_ns)

    def _until(self, is_enough: Callable[[R, int], bool]) -> list[R]:
        # walks back from the newest: a short window over a full ring costs what it gives
        kept: list[R] = []
        for record in self._newest_first():
            if is_enough(record, len(kept)):
                break
            kept.append(record)
        kept.reverse()
        return kept

    def _newest_first(self) -> Iterable[R]:
        for record in reversed(self._records):
            yield self._kind(*self._decode(record))
