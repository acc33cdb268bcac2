"""The scheduler: a pure state machine over sequences, blocks and slots. No clock, no device, no inbox.

`add` and `cancel` change who is there, `plan` gives each chosen sequence some of the tokens it has to catch
up, `apply` takes the sampled ones, `take_tokens` yields what the text side must hear. Time is passed in.

Who goes first, and who gives way, is asked of policies (core.policies); it is right whatever they answer. A
sequence is admitted only when the blocks for all tokens it has fit at once (or all that it ever holds, where
it drops some on its way: core.retention), so it is never preempted by its own prompt. When a running one
finds no block to grow, another (or it itself) is preempted. Since a request that cannot fit alone is refused,
and preemptions are bounded, every sequence ends.

When the device is lost (`device_lost`, until `device_ready`), nothing is planned, and whoever ran waits again
(core.recovery).
"""

from pipeline.core.allocation import ALLOCATIONS, AllocationName
from pipeline.core.arrived import ArrivedIds
from pipeline.core.block_pool import BlockPool
from pipeline.core.feasible import retention_of
from pipeline.core.flights import Flight
from pipeline.core.outcome import Outcome
from pipeline.core.plan_rows import PlanRows
from pipeline.core.planning import Planner
from pipeline.core.policies import Policies
from pipeline.core.prefix_cache import NoSharing, SharedPrefixes
from pipeline.core.recovery import Recovery
from pipeline.core.residents import Residents
from pipeline.core.roles import Role
from pipeline.core.scores import scores_of
from pipeline.core.sequence import Sequence
from pipeline.core.step_limit import StepLimit
from pipeline.core.waiting import Waiting
from pipeline.errors import RequestError
from pipeline.messages import (
    NO_TOKEN,
    DeviceReady,
    FinishReason,
    Rejected,
    SampledBatch,
    SamplingParams,
    StepPlan,
    TokenBatch,
    TokenizedRequest,
)


class Scheduler:
    """Owns every sequence from its arrival to its one terminal row, and all block ids.

    Args:
        device: what the device holds.
        eos_ids: token ids that end an answer.
        policies: not shared with another scheduler.
        roles: of each device worker.
        prefixes: likewise; None: every sequence computes all its tokens.
        allocation: of blocks; ranges that are contiguous are not shared, so not with `prefixes`.
        max_pinned_blocks: that requests may keep cached (core.pins); 0: who asks for it is refused.
    """

    def __init__(
        self,
        device: DeviceReady,
        eos_ids: tuple[int, ...],
        policies: Policies,
        roles: tuple[Role, ...] = (Role.BOTH,),
        prefixes: SharedPrefixes | None = None,
        allocation: AllocationName = "paged",
        max_pinned_blocks: int = 0,
    ) -> None:
        self.device = device
        self.roles = roles
        self.policies = policies
        prefixes = NoSharing() if prefixes is None else prefixes
        self.residents = Residents(device, prefixes, len(roles), ALLOCATIONS[allocation], max_pinned_blocks)
        self.flights = self.residents.flights
        self.waiting = Waiting(policies)
        self.num_steps = 0
        self.num_padding_tokens = 0
        """What padded batches would have computed for nothing so far."""
        self.is_lost = False
        self._last_void_step = 0
        self._limit = StepLimit(device.max_num_batched_tokens)
        self._eos_ids = frozenset(eos_ids)
        self._live: dict[int, Sequence] = {}
        self._arrived = ArrivedIds()
        self._tombstones: set[int] = set()
        self._outcome = Outcome(len(roles))
        parts = (self._limit, policies, self.residents, self.waiting, self._outcome)
        self.recovery = Recovery(policies, self.residents, self.waiting, self._outcome, self._live)
        self._planners = [Planner(worker, role, *parts) for worker, role in enumerate(roles)]

    @property
    def pool(self) -> BlockPool:
        """Which blocks are free."""
        return self.residents.pool

    @property
    def num_kv_tokens(self) -> int:
        """Tokens whose KV the running sequences hold, steps in flight included."""
        return self.residents.num_kv_tokens

    @property
    def num_running(self) -> int:
        """Sequences with a slot and blocks."""
        return len(self.residents.running)

    @property
    def num_waiting(self) -> int:
        return len(self._live) - len(self.residents.running)

    @property
    def num_preemptions(self) -> int:
        """Times that a sequence was sent back to the queue."""
        return sum(each.num_preemptions for each in self._planners)

    @property
    def num_outranked(self) -> int:
        """Those of them that were for a waiting one; the others were for a running one to grow."""
        return sum(each.num_outranked for each in self._planners)

    @property
    def last_preempted_ids(self) -> list[int]:
        """Those that the latest plan sent back to the queue; valid while it is in flight."""
        return self.flights.latest.preempted_ids

    @property
    def num_in_flight(self) -> int:
        """Steps planned and not yet applied, of all workers."""
        return len(self.flights)

    def num_in_flight_of(self, worker: int) -> int:
        """The same of one worker."""
        return self.flights.num_of(worker)

    @property
    def is_idle(self) -> bool:
        """No sequence, no step in flight, nothing to tell: then all blocks are free."""
        return not (self._live or len(self.flights) or self._outcome.has_rows)

    @property
    def wake_ns(self) -> int | None:
        """When `shed` or `plan` would do something although nothing has happened; None: never."""
        policies = self.policies
        times_ns = (policies.shedding.wake_ns, policies.batching.wake_ns, self.residents.prefixes.wake_ns)
        return min((each for each in times_ns if each is not None), default=None)

    # Who is there ---------------------------------------------------------------------------

    def add(self, request: TokenizedRequest) -> Rejected | None:
        """Take a request in, or say why it can never run."""
        self._arrived.add(request.request_id)
        sequence = Sequence.of(request)
        if request.request_id in self._tombstones:
            self._tombstones.remove(request.request_id)
            self._outcome.end(sequence, NO_TOKEN, FinishReason.CANCELLED)
            return None
        try:
            self._check(sequence)
        except RequestError as error:
            return Rejected.of(request.request_id, error)
        self._live[request.request_id] = sequence
        sequence.end_ids = self._end_ids(sequence.sampling)
        self.policies.lengths.predict(sequence)
        sequence.is_fetching = self.residents.prefixes.expect(sequence, request.sent_ns)
        self.waiting.push(sequence)
        return None

    def _check(self, sequence: Sequence) -> None:
        """Raises RequestError if it can never run."""
        retentions = self.policies.retentions
        sequence.retention = retention_of(sequence, self.device, retentions, self.residents)

    def add_rejected(self, request_id: int) -> None:
        """An id that was rejected before it became a sequence: it has arrived, and ends there."""
        self._arrived.add(request_id)
        self._tombstones.discard(request_id)

    def cancel(self, request_id: int, reason: FinishReason) -> None:
        """End a request early; a no-op for one that has ended. STOP owes no terminal row."""
        sequence = self._live.get(request_id)
        if sequence is None:
            if request_id not in self._arrived:
                self._tombstones.add(request_id)
        elif reason is FinishReason.STOP:
            self.policies.lengths.observe(sequence)
            self._release(sequence)
        else:
            self._release(sequence)
            self._outcome.end(sequence, NO_TOKEN, reason)

    def pause(self, request_id: int, *, is_paused: bool) -> None:
        """Plan no more (or again) of a request; it keeps its blocks. Unknown ids are ignored."""
        sequence = self._live.get(request_id)
        if sequence is None or sequence.is_paused == is_paused:
            return
        sequence.is_paused = is_paused
        if sequence.slot < 0:
            self.waiting.pause(sequence)

    def shed(self, now_ns: int) -> list[Rejected]:
        """Drop those that have waited in vain; the answers to them. Called before `plan`."""
        rejections: list[Rejected] = []
        for sequence, rejected in self.policies.shedding.expired(now_ns):
            self._release(sequence)
            rejections.append(rejected)
        return rejections

    def go_by(self, policies: Policies) -> None:
        """Be decided by others from now on, which know what those before must not forget (make_others)."""
        if policies is not self.policies:
            self.waiting.go_by(policies, self._live.values())

    # The device is lost, and another one is there ------------------------------------------

    def device_lost(self, *, is_out_of_memory: bool = False) -> list[int]:
        """Nothing of what it held counts, and all results to come are void. Those that ran, in their order.

        Args:
            is_out_of_memory: a step was too large, so those to come are smaller, for a while.
        """
        self.is_lost, self._last_void_step = True, self.num_steps
        if is_out_of_memory:
            self._limit.shrink()
        return self.recovery.lose(self.device)

    def device_ready(self, device: DeviceReady) -> list[Rejected]:
        """Planning goes on. Answers to those without a row that can never run on it any more; those with one
        get their terminal row.
        """
        self.device, self.is_lost = device, False
        self._limit.renew(device.max_num_batched_tokens)
        rejections: list[Rejected] = []
        for sequence in self.recovery.renew(device):
            try:
                self._check(sequence)
            except RequestError as error:
                self._release(sequence)
                if sequence.is_started:
                    self._outcome.end(sequence, NO_TOKEN, FinishReason.ERROR)
                else:
                    rejections.append(Rejected.of(sequence.request_id, error))
        return rejections

    # One step -------------------------------------------------------------------------------

    def plan(self, now_ns: int, worker: int = 0) -> StepPlan | None:
        """The next step of a worker, or None if no sequence has anything for it to compute."""
        if self.is_lost:
            return None
        self._let_in(now_ns)
        rows = self._planners[worker].fill(now_ns)
        if rows.is_empty:
            return None
        self.num_steps += 1
        flight = self._flight(rows)
        self.flights.add(flight)
        self.residents.prefixes.planned(
            flight.num_prefill_tokens, flight.num_decode_tokens, flight.num_kv_tokens
        )
        return rows.seal(self.num_steps, now_ns, self.policies.host.seal(self.num_steps))

    def is_void(self, step_id: int) -> bool:
        """The device was lost after that step was planned: it counts as never run; do not apply it."""
        return step_id <= self._last_void_step

    def apply(self, sampled: SampledBatch, taken_ns: int) -> Flight:
        """Take in the oldest step in flight of a worker: append its tokens, end what is at its end."""
        flight = self.flights.land(sampled.step_id)
        self._limit.applied()
        self.pool.give_back(flight.resting)
        self.policies.host.applied(flight.step_id)
        _, begin_ns, end_ns, _, _ = sampled.times_ns
        self.policies.learn(
            flight.step_id,
            flight.num_prefill_tokens,
            flight.num_decode_tokens,
            flight.num_kv_tokens,
            end_ns - begin_ns,
        )
        self._drop(flight, sampled)
        self._outcome.step(flight, (*sampled.times_ns, taken_ns))
        if sampled.scores is not None:
            self._outcome.scores(scores_of(flight.scoring, sampled.scores))
        live = self._live
        if sampled.logprobs is not None:
            self._outcome.logprobs(sampled.logprobs, self._current(sampled))
        going_on: list[int] = []
        token_ids: list[int] = []
        for request_id, epoch, token_id in zip(
            sampled.request_ids, sampled.epochs, sampled.token_ids, strict=True
        ):
            sequence = live.get(request_id)
            if sequence is None or sequence.epoch != epoch:
                continue  # ended or preempted while this row was in flight
            if token_id == NO_TOKEN:
                self._finish(sequence, token_id, FinishReason.ERROR)
                continue
            sequence.token_ids.append(token_id)
            if token_id in sequence.end_ids:
                self._finish(sequence, token_id, FinishReason.STOP)
            elif len(sequence.token_ids) >= sequence.max_len:
                self._finish(sequence, token_id, FinishReason.LENGTH)
            else:
                going_on.append(request_id)
                token_ids.append(token_id)
        self._outcome.tokens(going_on, token_ids)
        self._pool(sampled)
        if not self.roles[flight.worker].decodes:
            self._hand_over(going_on)
        return flight

    def take_tokens(self, now_ns: int) -> TokenBatch | None:
        """All rows since the last call, or None if there is nothing to tell."""
        return self._outcome.take(now_ns)

    def _end_ids(self, sampling: SamplingParams) -> frozenset[int]:
        ends = frozenset[int]() if sampling.ignore_eos else self._eos_ids
        return ends.union(sampling.stop_token_ids) if sampling.stop_token_ids else ends

    def _current(self, sampled: SampledBatch) -> set[int]:
        """Requests whose row in it is still wanted."""
        rows = zip(sampled.request_ids, sampled.epochs, strict=True)
        return {
            request_id
            for request_id, epoch in rows
            if (sequence := self._live.get(request_id)) is not None and sequence.epoch == epoch
        }

    def _let_in(self, now_ns: int) -> None:
        """Those that have waited for the disk take part from now on."""
        for sequence in self.residents.prefixes.released(now_ns):
            if self._live.get(sequence.request_id) is sequence and sequence.is_fetching:
                self.waiting.fetched(sequence)

    def _pool(self, sampled: SampledBatch) -> None:
        """Those that yielded their embeddings have ended."""
        for request_id, epoch, embedding in sampled.pooled:
            sequence = self._live.get(request_id)
            if sequence is not None and sequence.epoch == epoch:
                self._release(sequence)
                self._outcome.embedded(sequence, embedding)

    def _hand_over(self, request_ids: list[int]) -> None:
        """All that is known of them is computed: the next worker goes on with them."""
        for request_id in request_ids:
            sequence = self._live[request_id]
            self._outcome.leave(sequence)
            self.residents.hand_over(sequence)

    def _drop(self, flight: Flight, sampled: SampledBatch) -> None:
        """The device has said which blocks it can do without."""
        for (sequence, epoch), columns in zip(flight.asking, sampled.drops, strict=True):
            if sequence.epoch == epoch and sequence.slot >= 0:
                sequence.is_asking = False
                self.residents.drop(sequence, columns)
                self._outcome.dropped(sequence)

    def _flight(self, rows: PlanRows) -> Flight:
        num_padding_tokens = self.policies.batching.num_padding(self.num_running)
        self.num_padding_tokens += num_padding_tokens
        return Flight(
            step_id=self.num_steps,
            worker=rows.worker,
            joined=rows.joined,
            num_rows=rows.num_rows,
            num_prefill_tokens=rows.num_tokens - rows.num_decode_tokens,
            num_decode_tokens=rows.num_decode_tokens,
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            num_used_blocks=self.pool.num_owned,
            num_kv_tokens=self.residents.num_kv_tokens,
            num_shared_tokens=self.residents.num_shared_tokens,
            num_cached_tokens=sum(
                each.num_cached_tokens for each in rows.joined if each.epoch == each.worker == 0
            ),
            num_padding_tokens=num_padding_tokens,
            preempted_ids=self._planners[rows.worker].take_preempted(),
            asking=rows.asking,
            scoring=rows.scoring,
        )

    # Endings --------------------------------------------------------------------------------

    def _finish(self, sequence: Sequence, token_id: int, reason: FinishReason) -> None:
        self.policies.lengths.observe(sequence)
        self._release(sequence)
        self._outcome.end(sequence, token_id, reason)

    def _release(self, sequence: Sequence) -> None:
        """It has ended: nothing is kept of it."""
        del self._live[sequence.request_id]
        if sequence.slot >= 0:
            self.residents.leave(sequence)
        else:
            self.waiting.discard(sequence)
