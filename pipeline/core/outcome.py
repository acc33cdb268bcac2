"""Outcome: the rows of the next TokenBatch while they gather, and the times that go with them."""

from collections.abc import Sequence as Seq

from pipeline.core.sequence import Sequence
from pipeline.core.timeline import Timeline
from pipeline.messages import FinishReason, SequenceTimes, Started, TokenBatch


class Outcome:
    """Filled by the scheduler, emptied by take()."""

    def __init__(self) -> None:
        self._timeline = Timeline()
        self._step_id = 0
        self._has_step = False
        self._clear()

    @property
    def has_rows(self) -> bool:
        return bool(self._request_ids or self._started or self._timed)

    def step(self, step_id: int, times_ns: Seq[int], joined: list[Sequence]) -> None:
        """A step is applied; `joined` are the sequences whose first step it was."""
        self._step_id, self._has_step = step_id, True
        self._timeline.step(times_ns)
        for sequence in joined:
            if sequence.slot < 0:
                continue  # ended or preempted meanwhile
            sequence.clocked.join(self._timeline, times_ns)
            self._start(sequence)
            self._timed.append(sequence)

    def leave(self, sequence: Sequence) -> None:
        """The sequence is preempted."""
        sequence.clocked.leave(self._timeline)

    def tokens(self, request_ids: list[int], token_ids: list[int]) -> None:
        """One token each of sequences that go on."""
        self._request_ids += request_ids
        self._token_ids += token_ids
        self._finish_reasons += [FinishReason.NONE] * len(request_ids)

    def end(self, sequence: Sequence, token_id: int, reason: FinishReason) -> None:
        """The sequence's terminal row."""
        self._request_ids.append(sequence.request_id)
        self._token_ids.append(token_id)
        self._finish_reasons.append(reason)
        self._start(sequence)
        self._timed.append(sequence)

    def take(self, now_ns: int) -> TokenBatch | None:
        """The rows so far, given away; None if there is nothing to tell."""
        timeline = self._timeline
        if self._has_step:
            timeline.serve(now_ns)
            self._has_step = False
        if not self.has_rows:
            return None
        batch = TokenBatch(
            step_id=self._step_id,
            request_ids=self._request_ids,
            token_ids=self._token_ids,
            finish_reasons=self._finish_reasons,
            started=self._started,
            times=[
                SequenceTimes(each.request_id, each.clocked.base_ns(timeline, now_ns), each.epoch)
                for each in self._timed
            ],
            elapsed_ns=tuple(timeline.elapsed_ns),
            sent_ns=now_ns,
        )
        self._clear()
        return batch

    def _start(self, sequence: Sequence) -> None:
        if not sequence.is_started:
            sequence.is_started = True
            self._started.append(
                Started(sequence.request_id, sequence.num_prompt_tokens, sequence.sampling.stop)
            )

    def _clear(self) -> None:
        self._request_ids: list[int] = []
        self._token_ids: list[int] = []
        self._finish_reasons: list[int] = []
        self._started: list[Started] = []
        self._timed: list[Sequence] = []
