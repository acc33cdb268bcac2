"""Trace Event Format: the events of a Chrome trace, which ui.perfetto.dev opens.

Source: "Trace Event Format" (Google), JSON object form. Times are given in ns since the trace's begin and
written in us with three decimals, so that none is rounded.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

Event = dict[str, Any]

_FIRST_TID = 101
"""Above every pid: a thread with its process's id is shown first, as the main thread."""


class Slice(NamedTuple):
    begin_ns: int
    end_ns: int
    name: str
    args: dict[str, Any]


class Process:
    """One group of tracks. A track is known by its name."""

    def __init__(self, pid: int, name: str) -> None:
        self.pid = pid
        self._name = name
        self._tids: dict[str, int] = {}

    def track(self, name: str) -> int:
        """Its thread id; tracks are shown in the order in which they are first named."""
        return self._tids.setdefault(name, _FIRST_TID + len(self._tids))

    def complete(self, track: str, item: Slice) -> Event:
        """A slice. On one track slices must be apart, or one within the other and later in the file."""
        event = self._event("X", track, item.name, item.begin_ns)
        return {**event, "dur": (item.end_ns - item.begin_ns) / 1000, "args": item.args}

    def begin(self, track: str, name: str, at_ns: int) -> Event:
        """A slice that may never end. Not for a track with `complete` ones: Perfetto sorts them before it."""
        return self._event("B", track, name, at_ns)

    def end(self, track: str, name: str, at_ns: int) -> Event:
        """Of the latest that has begun on the track."""
        return self._event("E", track, name, at_ns)

    def instant(self, track: str, name: str, at_ns: int, args: dict[str, Any]) -> Event:
        return {**self._event("i", track, name, at_ns), "s": "t", "args": args}

    def counter(self, name: str, at_ns: int, values: dict[str, int]) -> Event:
        """Each value has a track of its own, called by `name` and its key."""
        return {"ph": "C", "name": name, "ts": at_ns / 1000, "pid": self.pid, "args": values}

    def names(self) -> Iterator[Event]:
        """What the process and its tracks are called; to be written once all are known."""
        yield self._meta(0, "process_name", name=self._name)
        yield self._meta(0, "process_sort_index", sort_index=self.pid)
        for name, tid in self._tids.items():
            yield self._meta(tid, "thread_name", name=name)
            yield self._meta(tid, "thread_sort_index", sort_index=tid)

    def _event(self, phase: str, track: str, name: str, at_ns: int) -> Event:
        return {"ph": phase, "name": name, "ts": at_ns / 1000, "pid": self.pid, "tid": self.track(track)}

    def _meta(self, tid: int, kind: str, **args: Any) -> Event:
        return {"ph": "M", "name": kind, "pid": self.pid, "tid": tid, "args": args}


def in_lanes(slices: Iterable[Slice]) -> Iterator[tuple[int, Slice]]:
    """The slices in the order of time, each with the first lane (0, 1, ...) that is free for it.

    Slices that overlap on one track would be read as nested.
    """
    ends_ns: list[int] = []
    for item in sorted(slices, key=lambda item: item.begin_ns):
        lane = next((i for i, end_ns in enumerate(ends_ns) if end_ns <= item.begin_ns), len(ends_ns))
        ends_ns[lane : lane + 1] = [item.end_ns]
        yield lane, item
