"""Residents: the sequences that hold a slot and blocks of the device."""

from collections import Counter
from collections.abc import Iterable

from pipeline.core.allocation import ALLOCATIONS, Allocation
from pipeline.core.block_pool import BlockPool
from pipeline.core.flights import Flights
from pipeline.core.prefix_cache import SharedPrefixes
from pipeline.core.sequence import Sequence
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
    ) -> None:
        self.flights = Flights(num_workers)
        self.prefixes = prefixes
        self.allocation = allocation
        self.pool: BlockPool = allocation.new_pool(device.num_blocks, prefixes.forget)
        self.running: dict[int, Sequence] = {}
        """By request id, oldest admission first."""
        self.num_kv_tokens = 0
        """Tokens whose KV they hold, steps in flight included."""
        self.num_owed = 0
        """Blocks that growing sequences lacked last and that come free soon: nobody may enter on them."""
        self.handed_over: dict[int, Sequence] = {}
        """By request id, those that their worker does not know yet."""
        self._block_size = device.block_size
        self._slots = list(range(device.max_num_seqs - 1, -1, -1))

    @property
    def num_free_slots(self) -> int:
        return len(self._slots)

    @property
    def num_shared_tokens(self) -> int:
        """Tokens that `num_kv_tokens` counts although another sequence's are the same, in the same block."""
        return self.pool.num_saved * self._block_size

    def num_needed(self, sequence: Sequence) -> int:
        """Blocks without which it should not enter: for all tokens it has, at once, and some to spare."""
        num_spare = self.allocation.num_spare(sequence, len(self.running))
        return self._num_first(sequence) + num_spare + self.num_owed

    def fits(self, sequence: Sequence) -> bool:
        """Whether what it wants is free, or held by others and to be shared."""
        if not self._slots:
            return False
        num_needed, pool = self.num_needed(sequence), self.pool
        return pool.fits(num_needed) or pool.fits(num_needed - pool.num_held(self.prefixes.find(sequence)))

    def enter(self, sequence: Sequence) -> None:
        """Give it a slot and blocks for all tokens it has; it must fit. What is shared or
        loaded counts as computed."""
        shared = self.prefixes.enter(sequence)
        self.pool.share(shared)
        own = self.pool.take(self._num_first(sequence) - len(shared))
        assert own is not None, "only what fits is admitted"
        sequence.slot, sequence.blocks = self._slots.pop(), shared + own
        self.pool.keep(self.prefixes.load(sequence))
        sequence.num_computed = max(sequence.num_computed, sequence.prefix.num_stored * self._block_size)
        self.running[sequence.request_id] = sequence
        self.num_kv_tokens += sequence.num_computed

    def store(self, sequence: Sequence) -> None:
        """Tokens of it were planned: let others share the blocks that are full by that.

        Who shares them enters at the first worker. What that one has planned it has written by then; of
        another's steps only those that are applied are sure to have run: all that is known but its end.
        """
        num_known = len(sequence.token_ids) - (sequence.worker > 0)
        self.pool.keep(self.prefixes.store(sequence, min(sequence.num_computed, num_known)))

    def short(self, sequences: list[Sequence]) -> list[Sequence]:
        """Those whose next token is written beyond the blocks they hold."""
        size = self._block_size
        return [each for each in sequences if each.num_computed >= len(each.blocks) * size]

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
        self.handed_over[sequence.request_id] = sequence

    def leave(self, sequence: Sequence) -> None:
        """Take slot and blocks back; the blocks are free now, or when no step in flight may write them. The
        full ones stay cached.
        """
        self.store(sequence)
        del self.running[sequence.request_id]
        self.num_kv_tokens -= sequence.num_computed
        self._slots.append(sequence.slot)
        self.handed_over.pop(sequence.request_id, None)
        if not self.flights.rest(sequence.worker, sequence.blocks):
            self.pool.give_back(sequence.blocks)
        sequence.slot, sequence.blocks = -1, []

    def _num_first(self, sequence: Sequence) -> int:
        """Blocks that it enters with."""
        return self.allocation.num_first(sequence, self._block_size)


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
