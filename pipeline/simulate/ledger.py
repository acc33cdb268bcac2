"""Ledger: what one replica did, kept so that a token costs nothing where nothing changes.

A request's tokens come in runs of successive steps: a run is two step numbers, and the time of every step is
kept once for all. So only a step whose rows differ from those of the step before costs a look at its rows.
"""

from array import array
from collections.abc import Sequence

from pipeline.messages import NO_TOKEN, TokenBatch

NEVER = 1 << 62
"""A step number past all."""


class Track:
    """One request's side of it."""

    __slots__ = ("at_ns", "index", "is_ended", "num_input", "num_left", "planned_ns", "runs", "tenant")

    def __init__(self, index: int, at_ns: int, num_input: int, num_output: int, tenant: str) -> None:
        self.index = index
        """In the workload."""
        self.at_ns = at_ns
        self.num_input = num_input
        self.num_left = num_output
        """Tokens still to come, but for those of a run that is not closed."""
        self.tenant = tenant
        self.planned_ns: int | None = None
        """First taken into a step."""
        self.runs: list[tuple[int, int]] = []
        """First and last step, both with a token of it."""
        self.is_ended = False
        """With its last token; False for one that was dropped on the way."""

    @property
    def num_tokens(self) -> int:
        return sum(last - first + 1 for first, last in self.runs)


class Ledger:
    """`step_ns[i]` is when the tokens of the i-th step left the scheduler."""

    def __init__(self) -> None:
        self.step_ns = array("q")
        """A step with the rows of the one before, none at its end, is no more than its time."""
        self.num_live = 0
        self.max_kv_tokens = 0
        self.kv_token_ns = 0
        """Integral of the tokens held over time."""
        self.running_ns = 0
        """Integral of the sequences that run over time;"""
        self.crowded_ns = 0
        """the time in which others waited, and"""
        self.running_crowded_ns = 0
        """the integral over that."""
        self.going: list[int] = []
        """The requests of the step before that went on, in its order."""
        self._tracks: list[Track] = []
        self._open: dict[int, int] = {}
        """Request to the first step of the run that it is in."""
        self._ends: dict[int, set[int]] = {}
        """Step to the open requests whose last token it has."""

    @property
    def tracks(self) -> Sequence[Track]:
        """By the replica's own request ids: 0, 1, 2, ..."""
        return self._tracks

    @property
    def num_steps_to_end(self) -> int:
        """Steps that come before the next one in which a request has its last token."""
        return min(self._ends, default=NEVER) - len(self.step_ns)

    def add(self, track: Track) -> None:
        """Its request id on this replica is its place among `tracks`."""
        self._tracks.append(track)
        self.num_live += 1

    def refused(self) -> None:
        """A request was turned away: it never becomes a sequence, or waited in vain."""
        self.num_live -= 1

    def admitted(self, request_ids: Sequence[int], planned_ns: int) -> None:
        for request_id in request_ids:
            track = self._tracks[request_id]
            if track.planned_ns is None:
                track.planned_ns = planned_ns

    def hold(self, num_kv_tokens: int, elapsed_ns: int) -> None:
        """So many tokens were held for so long."""
        self.kv_token_ns += num_kv_tokens * elapsed_ns
        if num_kv_tokens > self.max_kv_tokens:
            self.max_kv_tokens = num_kv_tokens

    def run(self, num_running: int, num_waiting: int, elapsed_ns: int) -> None:
        """So many sequences ran for so long, while so many waited."""
        self.running_ns += num_running * elapsed_ns
        if num_waiting:
            self.crowded_ns += elapsed_ns
            self.running_crowded_ns += num_running * elapsed_ns

    def held(self, kv_token_ns: int, num_kv_tokens: int) -> None:
        """As many calls of `hold` with rising tokens, the last so many."""
        self.kv_token_ns += kv_token_ns
        self.max_kv_tokens = max(self.max_kv_tokens, num_kv_tokens)

    def last_rows(self, request_ids: list[int]) -> list[int]:
        """Of the rows of the next step, the places of those whose request's last token it is."""
        ending = self._ends.get(len(self.step_ns), ())
        if request_ids == self.going and not ending:
            return []
        is_open, tracks = self._open, self._tracks
        return [
            place
            for place, request_id in enumerate(request_ids)
            if request_id in ending or (request_id not in is_open and tracks[request_id].num_left == 1)
        ]

    def tokens(self, batch: TokenBatch, at_ns: int) -> list[int]:
        """What the scheduler told after a step; the requests that ended."""
        step = len(self.step_ns)
        self.step_ns.append(at_ns)
        if batch.request_ids == self.going and not any(batch.finish_reasons):
            return []
        return self._change(batch, step)

    def _change(self, batch: TokenBatch, step: int) -> list[int]:
        is_open, rows = self._open, set(batch.request_ids)
        for request_id in [each for each in is_open if each not in rows]:
            self._close(request_id, step - 1)
        going: list[int] = []
        ended: list[int] = []
        for request_id, token_id, finish in zip(
            batch.request_ids, batch.token_ids, batch.finish_reasons, strict=True
        ):
            if token_id != NO_TOKEN and request_id not in is_open:
                self._begin(request_id, step)
            if not finish:
                going.append(request_id)
                continue
            if request_id in is_open:
                self._close(request_id, step if token_id != NO_TOKEN else step - 1)
            self._tracks[request_id].is_ended = token_id != NO_TOKEN
            ended.append(request_id)
        self.num_live -= len(ended)
        self.going = going
        return ended

    def _begin(self, request_id: int, step: int) -> None:
        self._open[request_id] = step
        self._ends.setdefault(step + self._tracks[request_id].num_left - 1, set()).add(request_id)

    def _close(self, request_id: int, last: int) -> None:
        track, first = self._tracks[request_id], self._open.pop(request_id)
        end = first + track.num_left - 1
        self._ends[end].remove(request_id)
        if not self._ends[end]:
            del self._ends[end]
        track.num_left -= last - first + 1
        track.runs.append((first, last))
