"""Fakes, shipped for stage authors: a runner without a device, a clock set by hand, a source and a sink."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import pack
from time import perf_counter_ns
from typing import Any, Generic, TypeVar

from pipeline.messages import NO_TOKEN, DeviceReady, DropQuestion, Pooling, SamplingParams, StepPlan
from pipeline.runtime.inbox import ALL, Inbox
from pipeline.runtime.reading import Cell, Context

M = TypeVar("M")

DEFAULT_CAPACITY = DeviceReady(num_blocks=4096, block_size=16, max_num_seqs=256, max_num_batched_tokens=2048)


def fake_token(sampling: SamplingParams, position: int, vocab: int = 94) -> int:
    """The token FakeRunner samples at `position`: a pure function of the request's seed and the position.

    So any mix-up of rows shows in the text. In [33, 33 + vocab): printable ASCII for a byte tokenizer.
    """
    return 33 + (sampling.seed * 7919 + position * 104_729) % vocab


class FakeHandle:
    """A step that was done at once."""

    __slots__ = ("_token_ids", "begin_ns", "end_ns", "plan")

    def __init__(self, plan: StepPlan, token_ids: list[int], begin_ns: int, end_ns: int) -> None:
        self.plan = plan
        self.begin_ns = begin_ns
        self.end_ns = end_ns
        self._token_ids = token_ids

    def is_ready(self) -> bool:
        return True

    def token_ids_sync(self) -> list[int]:
        return self._token_ids

    def drops_sync(self) -> list[list[int]]:
        """As if all blocks weighed the same but for where they are."""
        return [fake_drops(self.plan.step_id, question) for question in self.plan.questions]

    def embeddings_sync(self) -> list[bytes]:
        plan = self.plan
        return [fake_embedding(plan.num_computed[row] + plan.num_tokens[row]) for row in plan.pooled]

    def logprobs_sync(self) -> None:
        """It has no probabilities, and tells of none."""
        return None

    def scores_sync(self) -> None:
        return None


def fake_embedding(num_tokens: int) -> bytes:
    """What FakeRunner makes of a prompt of so many tokens: a unit vector that tells their number."""
    return pack("<8f", *(1.0 if num_tokens % 8 == at else 0.0 for at in range(8)))


def fake_drops(step_id: int, question: DropQuestion) -> list[int]:
    """A pure function of the step, which may name any of the columns."""
    columns = range(question.first_col, question.end_col)
    least = sorted(columns, key=lambda column: (column * 7919 + step_id * 104_729) % 31)
    return sorted(least[: question.num_drops])


class FakeRunner:
    """Costs nothing and computes nothing; obeys the plan's deltas as a real runner must.

    Args:
        capacity: what it claims to hold.
        before_step: called with each plan, e.g. to sleep or to raise.
    """

    def __init__(
        self,
        capacity: DeviceReady = DEFAULT_CAPACITY,
        before_step: Callable[[StepPlan], None] | None = None,
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self.capacity = capacity
        self._before_step = before_step
        self._clock = clock
        self._sampling: list[SamplingParams] = [SamplingParams()] * capacity.max_num_seqs

    def launch(self, plan: StepPlan, /) -> FakeHandle:
        begin_ns = self._clock()
        if self._before_step is not None:
            self._before_step(plan)
        for admitted in plan.admitted:
            self._sampling[admitted.slot] = admitted.sampling
        sampling = self._sampling
        token_ids = [
            fake_token(sampling[slot], num_computed + num_tokens)
            for slot, num_tokens, num_computed, samples in zip(
                plan.slots, plan.num_tokens, plan.num_computed, plan.samples, strict=True
            )
            if samples
        ]
        return FakeHandle(plan, token_ids, begin_ns, self._clock())

    def renew(self) -> DeviceReady:
        return self.capacity

    def close(self) -> None:
        return None


class CheckingRunner(FakeRunner):
    """A FakeRunner that keeps what each block would hold, and checks what every row reads.

    AssertionError if a plan leaves a hole, reads a block that holds anything but the KV of the tokens before
    (because another sequence has written to it, it was not brought back from host memory, or it was shared
    with somebody whose tokens differ, or was dropped although it must be seen), has two rows write to one
    place, asks for a token the device does not have, or for an embedding whose tokens were not all here.

    Args:
        prompts: token ids by request id, if the reader's own are to be compared with what he reads.
    """

    def __init__(
        self, capacity: DeviceReady = DEFAULT_CAPACITY, prompts: Mapping[int, Sequence[int]] | None = None
    ) -> None:
        super().__init__(capacity)
        self._prompts = prompts
        self._contexts = [Context(capacity.block_size) for _ in range(capacity.max_num_seqs)]
        self._owners: list[tuple[int, int] | None] = [None] * capacity.max_num_seqs
        self._last: list[int | None] = [None] * capacity.max_num_seqs
        self._histories: list[int | None] = [None] * capacity.max_num_seqs
        self._poolings: list[Pooling] = [""] * capacity.max_num_seqs
        self._num_summed = [0] * capacity.max_num_seqs
        """Tokens computed since the slot was given."""
        self._cells: dict[tuple[int, int], Cell] = {}
        self._host_cells: dict[int, list[Cell | None]] = {}

    def fork(self) -> "CheckingRunner":
        """For another worker: slots of its own, the same blocks."""
        other = type(self)(self.capacity, self._prompts)
        other._cells = self._cells
        return other

    def launch(self, plan: StepPlan, /) -> FakeHandle:
        self._copy(plan)
        for admitted in plan.admitted:
            self._contexts[admitted.slot] = Context(self.capacity.block_size, admitted)
            self._owners[admitted.slot] = self._histories[admitted.slot] = self._last[admitted.slot] = None
            self._poolings[admitted.slot], self._num_summed[admitted.slot] = admitted.pooling, 0
        self._change_tables(plan)
        assert sum(plan.num_tokens) == len(plan.token_ids) <= self.capacity.max_num_batched_tokens
        assert len(set(plan.slots)) == len(plan.slots), "a slot has two rows"
        written = self._write(plan)
        assert len(set(written)) == len(written), "two rows write to one place"
        histories = [self._read(plan, row) for row in range(len(plan.slots))]
        self._sum(plan)
        handle = self._sample(plan, histories)
        sampled = iter(handle.token_ids_sync())
        for slot, samples in zip(plan.slots, plan.samples, strict=True):
            if samples:
                self._last[slot] = next(sampled)
        self._name(handle)
        return handle

    def _sample(self, plan: StepPlan, histories: list[int]) -> FakeHandle:
        """`histories`: what each row has read, its own tokens included."""
        return super().launch(plan)

    def _change_tables(self, plan: StepPlan) -> None:
        for slot, column in zip(plan.dropped_slots, plan.dropped_cols, strict=True):
            self._contexts[slot].drop(column)
        for slot, column, block in zip(plan.block_slots, plan.block_cols, plan.block_ids, strict=True):
            self._contexts[slot].table[column] = block

    def _sum(self, plan: StepPlan) -> None:
        for slot, count in zip(plan.slots, plan.num_tokens, strict=True):
            self._num_summed[slot] += count
        for row in plan.pooled:
            slot = plan.slots[row]
            assert self._poolings[slot] and not plan.samples[row], "nobody asked for an embedding"
            is_whole = self._num_summed[slot] == plan.num_computed[row] + plan.num_tokens[row]
            assert is_whole or self._poolings[slot] == "last", "the mean lacks tokens"

    def _name(self, handle: FakeHandle) -> None:
        """Remember whom the step's answers name: nobody else may be dropped."""
        for question, columns in zip(handle.plan.questions, handle.drops_sync(), strict=True):
            assert question.num_drops <= question.end_col - question.first_col, "more than there are"
            context = self._contexts[handle.plan.slots[question.row]]
            context.named |= {context.table[column] for column in columns}

    def _copy(self, plan: StepPlan) -> None:
        """Blocks to host memory and back; a cell that was never written is copied as such."""
        block_size = self.capacity.block_size
        assert len(set(plan.saved_places)) == len(plan.saved_places), "two blocks are saved to one place"
        for block, place in zip(plan.saved_ids, plan.saved_places, strict=True):
            assert 0 <= place < self.capacity.num_host_blocks
            self._host_cells[place] = [self._cells.get((block, offset)) for offset in range(block_size)]
        for place, block in zip(plan.loaded_places, plan.loaded_ids, strict=True):
            for offset, held in enumerate(self._host_cells[place]):
                if held is None:
                    self._cells.pop((block, offset), None)
                else:
                    self._cells[block, offset] = held

    def _write(self, plan: StepPlan) -> list[tuple[int, int]]:
        """All rows' cells; their `history` is left to `_read`: a row may read what another one writes."""
        packed = iter(plan.token_ids)
        written: list[tuple[int, int]] = []
        for row, slot in enumerate(plan.slots):
            owner = (plan.request_ids[row], plan.epochs[row])
            if self._owners[slot] is None:
                self._owners[slot] = owner
            assert self._owners[slot] == owner, "a slot changed hands without being admitted"
            for position in range(plan.num_computed[row], plan.num_computed[row] + plan.num_tokens[row]):
                token_id = next(packed)
                if token_id == NO_TOKEN:
                    last = self._last[slot]
                    assert last is not None, "no token on the device"
                    token_id = last
                written.append(self._cell(slot, position))
                self._cells[written[-1]] = Cell(position, token_id, 0)
        return written

    def _read(self, plan: StepPlan, row: int) -> int:
        """What is left of its context: each must follow from what it could see. The last one's history."""
        slot, start = plan.slots[row], plan.num_computed[row]
        context, before = self._contexts[slot], self._histories[slot]
        prompt = self._prompts[plan.request_ids[row]] if self._prompts is not None else ()
        first = start - context.num_dropped
        places = [context.place(entry) for entry in range(first + plan.num_tokens[row])]
        assert all(place in self._cells for place in places), f"row {row} reads a hole"
        cells = [self._cells[place] for place in places]
        context.check_places(cells)
        history = 0
        parent: int | None = 0
        for entry, (place, held) in enumerate(zip(places, cells, strict=True)):
            assert entry != first or before in (None, history), f"row {row} reads another's tokens"
            assert held.position >= len(prompt) or held.token_id == prompt[held.position], (
                f"row {row}: {held}"
            )
            if parent is not None and context.sees_all(entry, held):
                history = parent = hash((parent, held.position, held.token_id))
            elif entry < first:
                history, parent = held.history, None  # what it saw may be gone
            else:
                history, parent = hash(context.seen(cells[: entry + 1])), None
            assert held.history in (0, history), f"row {row} reads what came after other tokens"
            self._cells[place] = held._replace(history=history)
        self._histories[slot] = history
        return history

    def _cell(self, slot: int, position: int) -> tuple[int, int]:
        context = self._contexts[slot]
        return context.place(position - context.num_dropped)


class ManualClock:
    """A clock in ns that moves when told."""

    def __init__(self, now_ns: int = 1) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, ns: int) -> None:
        self.now_ns += ns


class Script:
    """A source: sends its messages to a stage's inbox, each once the one before has been taken."""

    def __init__(self, messages: Iterable[object]) -> None:
        self._messages = messages

    async def play(self, inbox: Inbox[Any]) -> None:
        """Returns when the last one has been taken; the stage may still be at it."""
        for message in self._messages:
            await inbox.send(message)
            while inbox.stats().depth:  # noqa: ASYNC110 - a pass of the loop, not a time
                await asyncio.sleep(0)


class Collect(Generic[M]):
    """A sink, in the place of an outlet: takes everything at once, and keeps it in its order."""

    def __init__(self) -> None:
        self.messages: list[M] = []

    def offer(self, message: M) -> bool:
        self.messages.append(message)
        return True

    async def send(self, message: M) -> None:
        self.messages.append(message)

    def post(self, message: M) -> None:
        self.messages.append(message)

    def room(self) -> int:
        return ALL

    def when_room(self, callback: Callable[[], None]) -> None:
        raise AssertionError("it is never full, so nobody need wait until there is room")
