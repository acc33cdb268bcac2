"""Planner: composes the next step of one worker. Planners alone admit sequences and preempt them."""

from pipeline.core.outcome import Outcome
from pipeline.core.plan_rows import PlanRows
from pipeline.core.policies import Policies
from pipeline.core.residents import Residents
from pipeline.core.roles import Role
from pipeline.core.sequence import Sequence
from pipeline.core.step_limit import StepLimit
from pipeline.core.waiting import Waiting


class Planner:
    """Moves sequences between `waiting` and `residents`, as the policies say; see core.scheduling.

    Args:
        worker: whose steps, and
        role: what they hold.
        limit: tokens of a step.
        outcome: is told who leaves the device.
    """

    def __init__(
        self,
        worker: int,
        role: Role,
        limit: StepLimit,
        policies: Policies,
        residents: Residents,
        waiting: Waiting,
        outcome: Outcome,
    ) -> None:
        self.num_preemptions = 0
        self.num_outranked = 0
        """Preemptions for a waiting sequence; the others were for a running one to grow."""
        self._worker = worker
        self._role = role
        self._limit = limit
        self._policies = policies
        self._residents = residents
        self._waiting = waiting
        self._outcome = outcome
        self._preempted_ids: list[int] = []

    def fill(self, now_ns: int) -> PlanRows:
        """The rows of the next step; none if no sequence has anything for the worker to compute."""
        rows = PlanRows(self._worker, self._limit.num_tokens)
        is_open = self._role.admits and self._is_open(now_ns)
        if is_open:
            self._make_way(now_ns)
        num_preemptions = self.num_preemptions
        prefilling = self._decode(rows)
        is_open = is_open and self.num_preemptions == num_preemptions  # blocks just freed are not given away
        self._prefill(prefilling, rows, now_ns if is_open else None)
        if is_open:
            self._admit(rows, now_ns)
        if not (self._role.admits or rows.is_empty):
            self._take_over(rows)
        self._residents.num_kv_tokens += rows.num_tokens
        return rows

    def take_preempted(self) -> list[int]:
        """Requests that were sent back to the queue since the last call."""
        taken, self._preempted_ids = self._preempted_ids, []
        return taken

    def _decode(self, rows: PlanRows) -> list[Sequence]:
        """Decode rows come first in a step; those who share what the budget leaves for prefill."""
        decoding, prefilling = self._ready()
        decoding = self._grow(self._able(decoding[: rows.budget]), rows)
        self._go_on(decoding, rows)
        self._policies.order.served(decoding)
        rows.limit(self._policies.budget.max_tokens(len(decoding), self._residents.num_kv_tokens))
        return [each for each in prefilling if each.slot >= 0]

    def _prefill(self, prefilling: list[Sequence], rows: PlanRows, now_ns: int | None) -> None:
        """Go on with the prompts under way; who ranks before all of them is admitted first.

        `now_ns` is None in a step that admits nobody.
        """
        if not prefilling:
            return
        rank = self._policies.order.prefill_rank(self._residents.running.values())
        prefilling.sort(key=rank)
        first = rank(prefilling[0])
        while now_ns is not None and rows.budget:
            head = self._waiting.head(now_ns)
            if head is None or rank(head) >= first or not self._residents.fits(head):
                break
            self._join(head, rows)
        for sequence in prefilling:
            if rows.budget:
                self._compute(sequence, rows)

    def _ready(self) -> tuple[list[Sequence], list[Sequence]]:
        """The running with something to compute: one token past the prompt, or any other number."""
        decoding: list[Sequence] = []
        prefilling: list[Sequence] = []
        for sequence in self._residents.on(self._worker):
            num_tokens, num_computed = sequence.num_tokens, sequence.num_computed
            if num_tokens >= sequence.max_len or sequence.is_paused:
                continue
            if num_computed == num_tokens - 1 and num_computed >= sequence.num_prompt_tokens:
                decoding.append(sequence)
            else:
                prefilling.append(sequence)
        if not self._role.decodes:  # once its next token is being sampled, a sequence goes on elsewhere
            decoding = [each for each in decoding if each.num_tokens == len(each.token_ids)]
        return decoding, prefilling

    def _able(self, decoding: list[Sequence]) -> list[Sequence]:
        """Those that need not wait for the device to say what they drop."""
        residents = self._residents
        if not residents.num_dropping:
            return decoding
        for sequence in decoding:
            self._trim(sequence)
        return [each for each in decoding if residents.can_go_on(each)]

    def _go_on(self, decoding: list[Sequence], rows: PlanRows) -> None:
        """Each computes one token."""
        first, is_dropping = rows.num_rows, self._residents.num_dropping > 0
        rows.decode(decoding)
        for row, sequence in enumerate(decoding if is_dropping else (), first):
            rows.tell(sequence)
            self._ask(sequence, row, rows)

    def _grow(self, decoding: list[Sequence], rows: PlanRows) -> list[Sequence]:
        """See to it that each holds the block that its token is written to; those that do, and still run."""
        residents = self._residents
        short = residents.short(decoding)
        owed: set[Sequence] = set()
        if not residents.grow(short):
            for sequence in short:
                self._find_block(sequence)
            owed = set(residents.short([each for each in short if each.slot >= 0]))
            decoding = [each for each in decoding if each.slot >= 0 and each not in owed]
            short = [each for each in short if each.slot >= 0 and each not in owed]
        if self._role.decodes:
            residents.num_owed = len(owed)
        for sequence in short:
            rows.tell(sequence)
        return decoding

    def _find_block(self, sequence: Sequence) -> None:
        """Preempt until it has one or is preempted itself; but while blocks rest, it can wait for these."""
        residents = self._residents
        while sequence.slot >= 0 and not residents.grow([sequence]) and not residents.flights.num_resting:
            self._preempt(self._policies.preemption.victim(residents.running.values()))

    def _is_open(self, now_ns: int) -> bool:
        num_running, num_waiting = len(self._residents.running), self._waiting.num_eligible
        return self._policies.batching.opens(num_running, num_waiting, now_ns)

    def _make_way(self, now_ns: int) -> None:
        """Preempt for the first in order, where it outranks enough of the running to fit then."""
        if self._residents.flights.num_resting:
            return  # it may fit without, as soon as they are free
        head = self._waiting.head(now_ns)
        if head is not None and not self._residents.fits(head):
            victims = self._policies.preemption.victims(head, self._residents)
            self.num_outranked += len(victims)
            for victim in victims:
                self._preempt(victim)

    def _admit(self, rows: PlanRows, now_ns: int) -> None:
        while rows.budget:
            sequence = self._waiting.admissible(self._residents, now_ns)
            if sequence is None:
                self._policies.batching.filled()
                return
            self._join(sequence, rows)

    def _join(self, sequence: Sequence, rows: PlanRows) -> None:
        self._waiting.take(sequence)
        self._residents.enter(sequence)
        self._policies.eviction.restore(sequence)
        self._policies.batching.joined(sequence)
        sequence.worker = self._worker
        rows.join(sequence)
        self._compute(sequence, rows)

    def _compute(self, sequence: Sequence, rows: PlanRows) -> None:
        """As many of its tokens as the step and its blocks have room for; none until enough was dropped."""
        self._trim(sequence)
        count = min(sequence.num_to_compute(), rows.room(sequence), self._residents.room(sequence))
        if count:
            rows.tell(sequence)
            rows.add(sequence, count)
            self._residents.store(sequence)
            self._ask(sequence, rows.num_rows - 1, rows)

    def _ask(self, sequence: Sequence, row: int, rows: PlanRows) -> None:
        """Which of its blocks it can do without, where it has outgrown its budget with this row."""
        if sequence.retention.is_weighed and not sequence.is_asking:
            num_entries = sequence.num_entries
            if num_drops := sequence.retention.num_drops(num_entries):
                rows.ask(sequence, row, num_drops, sequence.retention.candidates(num_entries))

    def _trim(self, sequence: Sequence) -> None:
        """Drop what none of its queries to come will see."""
        if columns := sequence.retention.unseen(sequence.num_entries):
            self._residents.drop(sequence, columns)
            self._outcome.dropped(sequence)

    def _take_over(self, rows: PlanRows) -> None:
        """The worker learns of those handed over to it, whether or not they have a row."""
        for sequence in self._residents.handed_over.values():
            rows.join(sequence)
        self._residents.handed_over.clear()

    def _preempt(self, sequence: Sequence) -> None:
        """Send it back to the queue; what eviction does not keep is computed again after its return. What was
        dropped of it is seen again by the first of its tokens: so it is always computed again as a whole.
        """
        self._outcome.leave(sequence)
        keeps_none = sequence.retention.drops or sequence.is_computed_whole
        num_kept = 0 if keeps_none else self._policies.eviction.evict(sequence)
        self._residents.leave(sequence)
        sequence.epoch += 1
        sequence.num_computed = num_kept
        sequence.num_tokens = len(sequence.token_ids)
        self._preempted_ids.append(sequence.request_id)
        self._waiting.push(sequence)
        self.num_preemptions += 1
