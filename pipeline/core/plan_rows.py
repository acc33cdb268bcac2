"""PlanRows: the columns of a StepPlan while it is being filled."""

from pipeline.core.host_places import BlockCopies
from pipeline.core.scores import Scoring
from pipeline.core.sequence import NOT_TOLD, Sequence
from pipeline.messages import MAX_SCORES, NO_TOKEN, Admitted, DropQuestion, Scored, StepPlan


class PlanRows:
    """`budget` is how many tokens the step can still take."""

    def __init__(self, worker: int, budget: int) -> None:
        self.worker = worker
        self.budget = budget
        self.joined: list[Sequence] = []
        """Sequences that get a slot of this worker with this step."""
        self.asking: list[tuple[Sequence, int]] = []
        """Whose row has a question, and its epoch."""
        self.scoring: list[Scoring] = []
        self.num_decode_tokens = 0
        self._request_ids: list[int] = []
        self._epochs: list[int] = []
        self._slots: list[int] = []
        self._num_tokens: list[int] = []
        self._num_computed: list[int] = []
        self._samples: list[bool] = []
        self._token_ids: list[int] = []
        self._admitted: list[Admitted] = []
        self._block_slots: list[int] = []
        self._block_cols: list[int] = []
        self._block_ids: list[int] = []
        self._dropped_slots: list[int] = []
        self._dropped_cols: list[int] = []
        self._questions: list[DropQuestion] = []
        self._pooled: list[int] = []
        self._scored: list[Scored] = []
        self._num_scores_left = MAX_SCORES

    @property
    def is_empty(self) -> bool:
        return not self._request_ids

    @property
    def num_rows(self) -> int:
        return len(self._request_ids)

    @property
    def num_tokens(self) -> int:
        return len(self._token_ids)

    def room(self, sequence: Sequence) -> int:
        """How many tokens of it the step can take."""
        if sequence.scored_tokens(sequence.num_computed, sequence.num_tokens):
            return min(self.budget, self._num_scores_left)
        return self.budget

    def limit(self, num_tokens: int) -> None:
        """Take at most so many tokens more."""
        self.budget = min(self.budget, num_tokens)

    def join(self, sequence: Sequence) -> None:
        """The sequence is new to this worker, which must know its slot and all its blocks."""
        self.joined.append(sequence)
        retention = sequence.retention
        self._admitted.append(
            Admitted(
                sequence.slot,
                sequence.sampling,
                sequence.request_id,
                sequence.num_dropped,
                retention.num_sinks if retention.window else 0,
                retention.window,
                retention.is_weighed,
                sequence.num_prompt_tokens,
                sequence.token_ids.copy() if sequence.sampling.follows_tokens else [],
                sequence.pooling,
                tuple(image for image in sequence.images if image.end > sequence.num_computed),
            )
        )
        sequence.num_told, sequence.dropped_cols = 0, []
        self.tell(sequence)

    def tell(self, sequence: Sequence) -> None:
        """Bring its table on the worker up to date: what was dropped, then what is new."""
        slot, blocks, first = sequence.slot, sequence.blocks, sequence.num_told
        if first == NOT_TOLD:
            return  # it joins with this step
        if first == len(blocks) and not sequence.dropped_cols:
            return
        if sequence.dropped_cols:
            self._dropped_slots += [slot] * len(sequence.dropped_cols)
            self._dropped_cols += sequence.dropped_cols
            sequence.dropped_cols = []
        self._block_slots += [slot] * (len(blocks) - first)
        self._block_cols += range(first, len(blocks))
        self._block_ids += blocks[first:]
        sequence.num_told = len(blocks)

    def decode(self, sequences: list[Sequence]) -> None:
        """One row for each, of the one token it has to catch up: the hot path, so it goes by columns."""
        self._request_ids += [each.request_id for each in sequences]
        self._epochs += [each.epoch for each in sequences]
        self._slots += [each.slot for each in sequences]
        self._num_tokens += [1] * len(sequences)
        self._num_computed += [each.num_computed for each in sequences]
        self._samples += [True] * len(sequences)
        self._token_ids += [
            each.token_ids[-1] if len(each.token_ids) == each.num_tokens else NO_TOKEN for each in sequences
        ]
        for each in sequences:
            each.num_computed += 1
            each.num_tokens += 1
        self.num_decode_tokens += len(sequences)
        self.budget -= len(sequences)

    def add(self, sequence: Sequence, count: int) -> None:
        """Hand the next `count` tokens of the sequence to the device."""
        token_ids, start = sequence.token_ids, sequence.num_computed
        end = start + count
        is_last = end == sequence.num_tokens
        if is_last and sequence.pooling:
            self._pooled.append(self.num_rows)
        if scored := sequence.scored_tokens(start, end):
            self._score(sequence, start + 1, scored)
        self._request_ids.append(sequence.request_id)
        self._epochs.append(sequence.epoch)
        self._slots.append(sequence.slot)
        self._num_tokens.append(count)
        self._num_computed.append(start)
        self._samples.append(is_last and not sequence.pooling)
        if start < len(token_ids):
            self._token_ids += token_ids[start:end]
        else:
            self._token_ids.append(NO_TOKEN)  # sampled by a step in flight; a row has at most this one
        sequence.num_computed = end
        sequence.num_tokens += is_last
        self.num_decode_tokens += count == 1 and is_last and start >= sequence.num_prompt_tokens
        self.budget -= count

    def ask(self, sequence: Sequence, row: int, num_drops: int, columns: range) -> None:
        """Which of these columns weigh the least of its context?"""
        sequence.is_asking = True
        self.asking.append((sequence, sequence.epoch))
        self._questions.append(DropQuestion(row, num_drops, columns.start, columns.stop))

    def _score(self, sequence: Sequence, first: int, token_ids: list[int]) -> None:
        self._num_scores_left -= len(token_ids)
        self.scoring.append(Scoring(sequence, sequence.epoch, first, len(token_ids)))
        self._scored.append(Scored(self.num_rows, token_ids, sequence.sampling.prompt_logprobs or 0))

    def seal(self, step_id: int, now_ns: int, copies: BlockCopies) -> StepPlan:
        """The finished plan; the rows are given away."""
        return StepPlan(
            step_id=step_id,
            planned_ns=now_ns,
            request_ids=self._request_ids,
            epochs=self._epochs,
            slots=self._slots,
            num_tokens=self._num_tokens,
            num_computed=self._num_computed,
            samples=self._samples,
            token_ids=self._token_ids,
            admitted=self._admitted,
            block_slots=self._block_slots,
            block_cols=self._block_cols,
            block_ids=self._block_ids,
            saved_ids=copies.saved_ids,
            saved_places=copies.saved_places,
            loaded_places=copies.loaded_places,
            loaded_ids=copies.loaded_ids,
            worker=self.worker,
            dropped_slots=self._dropped_slots,
            dropped_cols=self._dropped_cols,
            questions=self._questions,
            pooled=self._pooled,
            scored=self._scored,
        )
