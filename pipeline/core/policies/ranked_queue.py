"""RankedQueue: waiting sequences by a key, smallest first."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from pipeline.core.sequence import Sequence

Entry = tuple[int, int, int, Sequence]
"""Key, request id, a serial number that no two entries share, the sequence."""

MIN_COMPACTED = 64


class RankedQueue:
    """A heap with lazy deletion: push and discard O(log n) amortised, the first k in order O(k log k).

    Equal keys go by request id. A sequence is in it at most once.
    """

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._entries: dict[int, Entry] = {}
        self._serials = count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.request_id in self._entries

    def push(self, key: int, sequence: Sequence) -> None:
        entry = (key, sequence.request_id, next(self._serials), sequence)
        self._entries[sequence.request_id] = entry
        heappush(self._heap, entry)

    def discard(self, sequence: Sequence) -> None:
        """Take it out, if it is in."""
        if self._entries.pop(sequence.request_id, None) is None:
            return
        if len(self._heap) > 2 * len(self._entries) + MIN_COMPACTED:
            self._heap = list(self._entries.values())
            heapify(self._heap)

    def first_key(self) -> int | None:
        """The smallest key; None if it is empty."""
        self._trim()
        return self._heap[0][0] if self._heap else None

    def pop_below(self, key: int) -> Iterator[Sequence]:
        """Take out and yield all of a smaller key, in order."""
        while (first_key := self.first_key()) is not None and first_key < key:
            sequence = self._heap[0][3]
            self.discard(sequence)
            yield sequence

    def __iter__(self) -> Iterator[Sequence]:
        """In order, without taking out. Sequences may be discarded meanwhile, but none pushed."""
        self._trim()
        heap = self._heap
        frontier = [(heap[0], 0)] if heap else []
        while frontier:
            entry, index = heappop(frontier)
            for child in range(2 * index + 1, min(2 * index + 3, len(heap))):
                heappush(frontier, (heap[child], child))
            if self._entries.get(entry[1]) is entry:
                yield entry[3]

    def _trim(self) -> None:
        heap = self._heap
        while heap and self._entries.get(heap[0][1]) is not heap[0]:
            heappop(heap)
