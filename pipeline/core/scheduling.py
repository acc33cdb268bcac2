"""The scheduler: a pure state machine over sequences, blocks and slots. No clock, no device, no inbox.

`add` and `cancel` change who is there, `plan` gives each chosen sequence some of the tokens it has to catch
up, `apply` takes the sampled ones, `take_tokens` yields what the text side must hear. Time is passed in.

Order: first come, first served. A waiting sequence is admitted when the blocks for all tokens it has fit at
once, so it is never preempted by its own prompt. When a running one finds no block to grow, the youngest is
preempted and recomputed later; so the oldest always progresses, and since a request that cannot fit alone
is refused, every sequence ends.
"""

from collections import deque

from pipeline.core.arrived import ArrivedIds
from pipeline.core.block_pool import BlockPool, blocks_for
from pipeline.core.outcome import Outcome
from pipeline.core.plan_rows import Flight, PlanRows
from pipeline.core.sequence import Sequence
from pipeline.messages import (
    NO_TOKEN,
    DeviceReady,
    FinishReason,
    Rejected,
    SampledBatch,
    StepPlan,
    TokenBatch,
    TokenizedRequest,
)


class Scheduler:
    """Owns every sequence from its arrival to its one terminal row, and all block ids.

    Args:
        device: what the device holds.
        eos_ids: token ids that end an answer.
    """

    def __init__(self, device: DeviceReady, eos_ids: tuple[int, ...]) -> None:
        self.device = device
        self.pool = BlockPool(device.num_blocks)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        """Oldest admission first."""
        self.num_preemptions = 0
        self.num_steps = 0
        self.num_kv_tokens = 0
        """Tokens whose KV the running sequences hold, steps in flight included."""
        self._eos_ids = frozenset(eos_ids)
        self._live: dict[int, Sequence] = {}
        self._slots = list(range(device.max_num_seqs - 1, -1, -1))
        self._arrived = ArrivedIds()
        self._tombstones: set[int] = set()
        self._in_flight: deque[Flight] = deque()
        self._preempted_ids: list[int] = []
        self._outcome = Outcome()

    @property
    def num_in_flight(self) -> int:
        """Steps planned and not yet applied."""
        return len(self._in_flight)

    @property
    def is_idle(self) -> bool:
        """No sequence, no step in flight, nothing to tell: then all blocks are free."""
        return not (self._live or self._in_flight or self._outcome.has_rows)

    # Who is there ---------------------------------------------------------------------------

    def add(self, request: TokenizedRequest) -> Rejected | None:
        """Take a request in, or say why it can never run."""
        self._arrived.add(request.request_id)
        sequence = Sequence.of(request)
        if request.request_id in self._tombstones:
            self._tombstones.remove(request.request_id)
            self._outcome.end(sequence, NO_TOKEN, FinishReason.CANCELLED)
            return None
        capacity = self.device.num_blocks * self.device.block_size
        if sequence.max_kv_tokens > capacity:
            return Rejected(
                request.request_id,
                f"The KV cache holds {capacity} tokens; this request needs {sequence.max_kv_tokens} "
                f"({sequence.num_prompt_tokens} prompt + {request.sampling.max_tokens} max_tokens - 1).",
                status=400,
                param="max_tokens",
                code="kv_capacity_exceeded",
            )
        self._live[request.request_id] = sequence
        self.waiting.append(sequence)
        return None

    def add_rejected(self, request_id: int) -> None:
        """An id that was rejected before it became a sequence: it has arrived, and ends there."""
        self._arrived.add(request_id)
        self._tombstones.discard(request_id)

    def cancel(self, request_id: int, reason: FinishReason) -> None:
        """End a request early; a no-op for one that has ended. STOP owes no terminal row."""
        sequence = self._live.get(request_id)
        if sequence is not None:
            self._release(sequence)
            if reason is not FinishReason.STOP:
                self._outcome.end(sequence, NO_TOKEN, reason)
        elif request_id not in self._arrived:
            self._tombstones.add(request_id)

    def pause(self, request_id: int, *, is_paused: bool) -> None:
        """Plan no more (or again) of a request; it keeps its blocks. Unknown ids are ignored."""
        if sequence := self._live.get(request_id):
            sequence.is_paused = is_paused

    # One step -------------------------------------------------------------------------------

    def plan(self, now_ns: int) -> StepPlan | None:
        """The next step, or None if no sequence has anything to compute."""
        rows = PlanRows(self.device.max_num_batched_tokens)
        num_preemptions = self.num_preemptions
        self._plan_prefills(rows, self._plan_decodes(rows))
        if self.num_preemptions == num_preemptions:  # blocks just freed are not given away again
            self._admit(rows)
        if rows.is_empty:
            return None
        self.num_steps += 1
        self.num_kv_tokens += rows.num_tokens
        self._in_flight.append(self._flight(rows))
        return rows.seal(self.num_steps, now_ns)

    def apply(self, sampled: SampledBatch, taken_ns: int) -> Flight:
        """Take in the oldest step in flight: append its tokens, end what is at its end."""
        flight = self._in_flight.popleft()
        if flight.step_id != sampled.step_id:
            raise AssertionError(f"step {sampled.step_id} applied, {flight.step_id} expected")
        self._outcome.step(flight.step_id, (*sampled.times_ns, taken_ns), flight.joined)
        live, eos_ids = self._live, self._eos_ids
        going_on: list[int] = []
        token_ids: list[int] = []
        for request_id, epoch, token_id in zip(
            sampled.request_ids, sampled.epochs, sampled.token_ids, strict=True
        ):
            sequence = live.get(request_id)
            if sequence is None or sequence.epoch != epoch:
                continue  # ended or preempted while this row was in flight
            sequence.num_pending -= 1
            sequence.token_ids.append(token_id)
            if token_id in eos_ids and not sequence.sampling.ignore_eos:
                self._finish(sequence, token_id, FinishReason.STOP)
            elif len(sequence.token_ids) >= sequence.max_len:
                self._finish(sequence, token_id, FinishReason.LENGTH)
            else:
                going_on.append(request_id)
                token_ids.append(token_id)
        self._outcome.tokens(going_on, token_ids)
        return flight

    def take_tokens(self, now_ns: int) -> TokenBatch | None:
        """All rows since the last call, or None if there is nothing to tell."""
        return self._outcome.take(now_ns)

    # Parts of plan --------------------------------------------------------------------------

    def _plan_decodes(self, rows: PlanRows) -> list[Sequence]:
        """Those with one token to catch up; returns those with more."""
        block_size = self.device.block_size
        behind: list[Sequence] = []
        for sequence in tuple(self.running):
            count = sequence.num_to_compute()
            if count > 1:
                behind.append(sequence)
            if count != 1 or sequence.is_paused or sequence.slot < 0 or not rows.budget:
                continue
            if sequence.num_computed < len(sequence.blocks) * block_size or self._grow(sequence, rows):
                rows.add(sequence, 1)
        return behind

    def _plan_prefills(self, rows: PlanRows, behind: list[Sequence]) -> None:
        for sequence in behind:
            if rows.budget and not sequence.is_paused and sequence.slot >= 0:
                rows.add(sequence, min(sequence.num_to_compute(), rows.budget))

    def _admit(self, rows: PlanRows) -> None:
        while self._slots and rows.budget:
            sequence = next((each for each in self.waiting if not each.is_paused), None)
            if sequence is None:
                return
            blocks = self.pool.take(blocks_for(len(sequence.token_ids), self.device.block_size))
            if blocks is None:
                return
            self.waiting.remove(sequence)
            self.running.append(sequence)
            sequence.slot, sequence.blocks = self._slots.pop(), blocks
            rows.join(sequence)
            rows.add(sequence, min(sequence.num_to_compute(), rows.budget))

    def _grow(self, sequence: Sequence, rows: PlanRows) -> bool:
        """Hold one block more, preempting from the youngest on. False: it was the youngest."""
        while (blocks := self.pool.take(1)) is None:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.blocks += blocks
        rows.grow(sequence)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Give up blocks and slot; all tokens known so far are recomputed when it is admitted again."""
        self._unschedule(sequence)
        self._outcome.leave(sequence)
        sequence.epoch += 1
        self._preempted_ids.append(sequence.request_id)
        sequence.num_computed = sequence.num_pending = 0
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1

    def _flight(self, rows: PlanRows) -> Flight:
        preempted_ids, self._preempted_ids = self._preempted_ids, []
        return Flight(
            step_id=self.num_steps,
            joined=rows.joined,
            num_rows=rows.num_rows,
            num_prefill_tokens=rows.num_tokens - rows.num_decode_tokens,
            num_decode_tokens=rows.num_decode_tokens,
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            num_used_blocks=self.pool.num_owned,
            num_kv_tokens=self.num_kv_tokens,
            preempted_ids=preempted_ids,
        )

    # Endings --------------------------------------------------------------------------------

    def _finish(self, sequence: Sequence, token_id: int, reason: FinishReason) -> None:
        self._release(sequence)
        self._outcome.end(sequence, token_id, reason)

    def _release(self, sequence: Sequence) -> None:
        del self._live[sequence.request_id]
        if sequence.slot >= 0:
            self._unschedule(sequence)
        else:
            self.waiting.remove(sequence)

    def _unschedule(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.num_kv_tokens -= sequence.num_computed
        self._slots.append(sequence.slot)
        self.pool.give_back(sequence.blocks)
        sequence.slot, sequence.blocks = -1, []
