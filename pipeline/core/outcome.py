"""Outcome: the rows of the next TokenBatch while they gather, and the times that go with them."""

from collections.abc import Container, Iterable
from collections.abc import Sequence as Seq
from itertools import chain

from pipeline.core.flights import Flight
from pipeline.core.scores import Score
from pipeline.core.sequence import Sequence
from pipeline.core.timeline import Timeline
from pipeline.messages import NO_TOKEN, FinishReason, Logprobs, SequenceTimes, Started, TokenBatch

_GOES_ON = int(FinishReason.NONE)
"""A plain int: to encode an IntEnum takes as long as the other two columns of a row."""


class Outcome:
    """Filled by the scheduler, emptied by take().

    Workers run at the same time, so each has a timeline; a sequence shares that of the worker it is on.
    """

    def __init__(self, num_workers: int) -> None:
        self._timelines = [Timeline() for _ in range(num_workers)]
        self._stepped: set[int] = set()
        """Workers that a step was applied of since the last take()."""
        self._step_id = 0
        self._logprobs: Logprobs | None = None
        self._scores: Logprobs | None = None
        self._clear()

    @property
    def has_rows(self) -> bool:
        return bool(self._request_ids or self._started or self._timed or self._scores)

    def step(self, flight: Flight, times_ns: Seq[int]) -> None:
        """A step is applied."""
        worker, timeline = flight.worker, self._timelines[flight.worker]
        self._step_id = flight.step_id
        self._stepped.add(worker)
        timeline.step(times_ns)
        for sequence in flight.joined:
            if sequence.slot < 0 or sequence.worker != worker:
                continue  # ended or preempted meanwhile
            sequence.clocked.join(timeline, times_ns)
            self._start(sequence)
            self._timed.append(sequence)

    def leave(self, sequence: Sequence) -> None:
        """The sequence is preempted, or handed over to another worker."""
        sequence.clocked.leave(self._timelines[sequence.worker])

    def dropped(self, sequence: Sequence) -> None:
        """Blocks of its context have been dropped: what the text side was told of that is no longer true."""
        if sequence.is_started:
            self._timed.append(sequence)

    def tokens(self, request_ids: list[int], token_ids: list[int]) -> None:
        """One token each of sequences that go on."""
        self._request_ids += request_ids
        self._token_ids += token_ids
        self._finish_reasons += [_GOES_ON] * len(request_ids)

    def logprobs(self, told: Logprobs, request_ids: Container[int]) -> None:
        """Of the tokens that come next; those of other requests are left out."""
        mine = self._logprobs = self._logprobs or Logprobs([], [], [], [], [])
        for row, request_id in enumerate(told.request_ids):
            if request_id in request_ids:
                mine.request_ids.append(request_id)
                mine.token_ids.append(told.token_ids[row])
                mine.values.append(told.values[row])
                mine.top_ids.append(told.top_ids[row])
                mine.top_values.append(told.top_values[row])

    def scores(self, told: Iterable[tuple[Sequence, list[Score]]]) -> None:
        """Of prompts' tokens, whose requests may have no row."""
        mine = self._scores = self._scores or Logprobs([], [], [], [], [])
        for sequence, scores in told:
            mine.request_ids.extend([sequence.request_id] * len(scores))
            for score in scores:
                mine.token_ids.append(score.token_id)
                mine.values.append(score.value)
                mine.top_ids.append(score.top_ids)
                mine.top_values.append(score.top_values)

    def end(self, sequence: Sequence, token_id: int, reason: FinishReason) -> None:
        """The sequence's terminal row."""
        self._request_ids.append(sequence.request_id)
        self._token_ids.append(token_id)
        self._finish_reasons.append(reason)
        self._start(sequence)
        self._timed.append(sequence)

    def embedded(self, sequence: Sequence, embedding: bytes) -> None:
        """The terminal row of one that yields no token but this."""
        self.end(sequence, NO_TOKEN, FinishReason.STOP)
        self._embeddings[sequence.request_id] = embedding

    def take(self, now_ns: int) -> TokenBatch | None:
        """The rows so far, given away; None if there is nothing to tell."""
        for worker in self._stepped:
            self._timelines[worker].serve(now_ns)
        self._stepped.clear()
        if not self.has_rows:
            return None
        batch = TokenBatch(
            step_id=self._step_id,
            request_ids=self._request_ids,
            token_ids=self._token_ids,
            finish_reasons=self._finish_reasons,
            started=self._started,
            times=[self._times(each, now_ns) for each in self._timed],
            elapsed_ns=tuple(chain.from_iterable(each.elapsed_ns for each in self._timelines)),
            sent_ns=now_ns,
            logprobs=self._logprobs,
            embeddings=self._embeddings,
            scores=self._scores,
        )
        self._clear()
        return batch

    def _times(self, sequence: Sequence, now_ns: int) -> SequenceTimes:
        base_ns = sequence.clocked.base_ns(self._timelines[sequence.worker], now_ns)
        return SequenceTimes(
            sequence.request_id, base_ns, sequence.epoch, sequence.worker, sequence.num_dropped_tokens
        )

    def _start(self, sequence: Sequence) -> None:
        if not sequence.is_started:
            sequence.is_started = True
            self._started.append(
                Started(
                    sequence.request_id,
                    sequence.num_prompt_tokens,
                    sequence.sampling.stop,
                    sequence.num_cached_tokens,
                    tenant=sequence.terms.tenant,
                    min_tokens=sequence.sampling.min_tokens,
                    includes_stop=sequence.sampling.include_stop_str_in_output,
                    skips_special=sequence.sampling.skip_special_tokens,
                    unstopped=sequence.sampling.unstopped,
                )
            )

    def _clear(self) -> None:
        self._request_ids: list[int] = []
        self._token_ids: list[int] = []
        self._finish_reasons: list[int] = []
        self._started: list[Started] = []
        self._timed: list[Sequence] = []
        self._logprobs = None
        self._scores = None
        self._embeddings: dict[int, bytes] = {}
