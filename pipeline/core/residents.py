"""Residents: the sequences that hold a slot and blocks of the device."""

from collections import Counter
from collections.abc import Collection, Iterable

from pipeline.core.allocation import ALLOCATIONS, Allocation
from pipeline.core.block_pool import BlockPool, blocks_for
from pipeline.core.flights import Flights
from pipeline.core.pins import Pins
from pipeline.core.prefix_cache import SharedPrefixes
from pipeline.core.sequence import NOT_TOLD, Sequence
from pipeline.messages import DeviceReady


class Residents:
    """Who is on the device, in the order of admission. Knows what fits, not who should.

    Invariant: a sequence is in `running` exactly while it has a slot. Of its blocks the first
    `prefix.num_stored` may be held by others as well, and are never written to; the others are its own.
    """

    def __init__(
        self,
        device: DeviceReady,
        prefixes: SharedPrefixes,
        num_workers: int = 1,
        allocation: Allocation = ALLOCATIONS["paged"],
        max_pinned_blocks: int = 0,
    ) -> None:
        self.flights = Flights(num_workers)
        self.prefixes = prefixes
        self.allocation = allocation
        self.pins = Pins(max_pinned_blocks) if max_pinned_blocks else None
        self.running: dict[int, Sequence] = {}
        """By request id, oldest admission first."""
        self.num_dropped_blocks = 0
        """So far, of all sequences."""
        self.handed_over: dict[int, Sequence] = {}
        """By request id, those that their worker does not know yet."""
        self.renew(device)

    def renew(self, device: DeviceReady) -> None:
        """Nothing is on the device so far, and nobody runs."""
        assert not self.running, "who runs has blocks"
        self.flights.clear()
        if self.pins is not None:
            self.pins.forget()
        self.pool: BlockPool = self.allocation.new_pool(device.num_blocks, self.prefixes.forget, self.pins)
        self.num_dropping = 0
        """Of the running, those that may drop blocks of their context (core.retention)."""
        self.num_kv_tokens = 0
        """Tokens whose KV they hold, steps in flight included."""
        self.num_owed = 0
        """Blocks that growing sequences lacked last and that come free soon: nobody may enter on them."""
        self._block_size = device.block_size
        self._slots = list(range(device.max_num_seqs - 1, -1, -1))

    def lose(self) -> list[Sequence]:
        """What they hold is gone: nobody runs any more. Those that did, in the order of their admission."""
        lost = list(self.running.values())
        self.running.clear()
        self.handed_over.clear()
        for sequence in lost:
            sequence.lose()
        return lost

    @property
    def num_free_slots(self) -> int:
        return len(self._slots)

    @property
    def num_shared_tokens(self) -> int:
        """Tokens that `num_kv_tokens` counts although another sequence's are the same, in the same block."""
        return self.pool.num_saved * self._block_size

    def num_needed(self, sequence: Sequence) -> int:
        """Blocks without which it should not enter: its first ones, at once, and some to spare."""
        num_spare = self.allocation.num_spare(sequence, len(self.running))
        return self._num_first(sequence) + num_spare + self.num_owed

    def fits(self, sequence: Sequence) -> bool:
        """Whether what it wants is free, or held by others and to be shared."""
        if not self._slots:
            return False
        num_needed, pool = self.num_needed(sequence), self.pool
        return pool.fits(num_needed) or pool.fits(num_needed - pool.num_held(self.prefixes.find(sequence)))

    def enter(self, sequence: Sequence) -> None:
        """Give it a slot and its first blocks; it must fit. What is shared or loaded counts as computed."""
        shared = self.prefixes.enter(sequence)
        self.pool.share(shared)
        own = self.pool.take(self._num_first(sequence) - len(shared))
        assert own is not None, "only what fits is admitted"
        sequence.slot, sequence.blocks = self._slots.pop(), shared + own
        self.pool.keep(self.prefixes.load(sequence))
        sequence.num_computed = max(sequence.num_computed, sequence.prefix.num_stored * self._block_size)
        self.running[sequence.request_id] = sequence
        self.num_dropping += sequence.retention.drops
        self.num_kv_tokens += sequence.num_computed

    def store(self, sequence: Sequence) -> None:
        """Tokens of it were planned: let others share the blocks that are full by that.

        Who shares them enters at the first worker. What that one has planned it has written by then; of
        another's steps only those that are applied are sure to have run: all that is known but its end. What
        may be dropped is not shared.
        """
        num_known = len(sequence.token_ids) - (sequence.worker > 0)
        num_lasting = min(sequence.num_computed, num_known, sequence.retention.num_sinks)
        self.pool.keep(self.prefixes.store(sequence, num_lasting))

    def short(self, sequences: list[Sequence]) -> list[Sequence]:
        """Those whose next token is written beyond the blocks they hold."""
        size = self._block_size
        return [each for each in sequences if each.num_computed - each.num_dropped >= len(each.blocks) * size]

    def room(self, sequence: Sequence) -> int:
        """Tokens that can be computed before it needs another block."""
        return len(sequence.blocks) * self._block_size - sequence.num_entries

    def can_go_on(self, sequence: Sequence) -> bool:
        """Whether it has room for a token, or may grow. If not, the device has been asked what to drop."""
        return len(sequence.blocks) < sequence.retention.max_blocks or self.room(sequence) > 0

    def drop(self, sequence: Sequence, columns: Collection[int]) -> None:
        """Take blocks out of its context for good; it has computed all their tokens, and holds them alone.

        As many as the rest of its prompt, or its next token, will need become its last blocks, to be written
        to anew: a later step of the worker that may still read them does so. So a sequence goes on whatever
        others hold. The others are free, at once or when no step in flight may read them.
        """
        gone, blocks = frozenset(columns), sequence.blocks
        again = [blocks[column] for column in sorted(gone)]
        blocks = [block for column, block in enumerate(blocks) if column not in gone] + again
        num_tokens = len(gone) * self._block_size
        sequence.dropped_cols += sorted(gone, reverse=True)
        sequence.num_told -= len(gone) if sequence.num_told != NOT_TOLD else 0
        sequence.num_dropped += num_tokens
        sequence.num_dropped_tokens += num_tokens
        self.num_kv_tokens -= num_tokens
        self.num_dropped_blocks += len(gone)
        num_next = min(sequence.num_tokens + 1, sequence.max_kv_tokens) - sequence.num_dropped
        num_wanted = min(blocks_for(num_next, self._block_size), sequence.retention.max_blocks)
        sequence.blocks = blocks[:num_wanted]
        self._give_back(sequence, blocks[num_wanted:])

    def grow(self, sequences: list[Sequence]) -> bool:
        """A block more for each; False, and none for any, if so many are not free."""
        blocks = self.pool.take(len(sequences))
        if blocks is None:
            return False
        for sequence, block in zip(sequences, blocks, strict=True):
            self.store(sequence)
            sequence.blocks.append(block)
        return True

    def on(self, worker: int) -> Iterable[Sequence]:
        """The running of one worker."""
        running = self.running.values()
        return running if self.flights.num_workers == 1 else [k for k in running if k.worker == worker]

    def hand_over(self, sequence: Sequence) -> None:
        """The next worker goes on with it, in the same slot and blocks."""
        sequence.worker += 1
        sequence.num_told = NOT_TOLD
        self.handed_over[sequence.request_id] = sequence

    def leave(self, sequence: Sequence) -> None:
        """Take slot and blocks back; the blocks are free now, or when no step in flight may write them. The
        full ones stay cached, and those of a prompt pinned where that was asked for.
        """
        self.store(sequence)
        if self.pins is not None and sequence.terms.cache_pin:
            num_full = sequence.num_prompt_tokens // self._block_size
            self.pins.pin(sequence.blocks[: min(num_full, sequence.prefix.num_stored)])
        del self.running[sequence.request_id]
        self.num_dropping -= sequence.retention.drops
        self.num_kv_tokens -= sequence.num_entries
        self._slots.append(sequence.slot)
        self.handed_over.pop(sequence.request_id, None)
        self._give_back(sequence, sequence.blocks)
        sequence.slot, sequence.blocks = -1, []
        sequence.num_dropped, sequence.is_asking = 0, False

    def _give_back(self, sequence: Sequence, blocks: list[int]) -> None:
        if not self.flights.rest(sequence.worker, blocks):
            self.pool.give_back(blocks)

    def _num_first(self, sequence: Sequence) -> int:
        """Blocks that it enters with."""
        return min(self.allocation.num_first(sequence, self._block_size), sequence.retention.max_blocks)


class Room:
    """What a waiting sequence would find if some of those on the device left, one after the other."""

    def __init__(self, residents: Residents, waiting: Sequence) -> None:
        found = residents.prefixes.find(waiting)
        self._pool = residents.pool
        self._found = frozenset(found)
        self._num_needed = residents.num_needed(waiting) - self._pool.num_held(found)
        self._num_slots = residents.num_free_slots
        self._left: Counter[int] = Counter()
        self._freed: list[int] = []

    @property
    def is_enough(self) -> bool:
        return self._num_slots > 0 and self._pool.fits(self._num_needed, self._freed)

    def leave(self, sequence: Sequence) -> None:
        """A block becomes free when its last holder leaves; one that `waiting` shares is no gain."""
        self._num_slots += 1
        self._left.update(sequence.blocks)
        self._freed += [
            block
            for block in sequence.blocks
            if self._left[block] == self._pool.num_holders(block) and block not in self._found
        ]
