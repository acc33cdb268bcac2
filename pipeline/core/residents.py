"""Residents: the sequences that hold a slot and blocks of the device."""

from collections.abc import Iterable

from pipeline.core.block_pool import BlockPool, blocks_for
from pipeline.core.flights import Flights
from pipeline.core.sequence import Sequence
from pipeline.messages import DeviceReady


class Residents:
    """Who is on the device, in the order of admission. Knows what fits, not who should.

    Invariant: a sequence is in `running` exactly while it has a slot, and it alone owns its blocks.
    """

    def __init__(self, device: DeviceReady, num_workers: int = 1) -> None:
        self.flights = Flights(num_workers)
        self.pool = BlockPool(device.num_blocks)
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

    def num_needed(self, sequence: Sequence) -> int:
        """Free blocks without which it should not enter: enough for all tokens it has, at once.

        For one that was preempted also a block for each sequence here to grow by, so that its return is not
        the next preemption's cause; alone, it always fits.
        """
        reserve = len(self.running) if sequence.epoch else 0
        return blocks_for(len(sequence.token_ids), self._block_size) + reserve + self.num_owed

    def fits(self, sequence: Sequence) -> bool:
        return bool(self._slots) and self.num_needed(sequence) <= self.pool.num_free

    def enter(self, sequence: Sequence) -> None:
        """Give it a slot and blocks for all tokens it has; it must fit."""
        blocks = self.pool.take(blocks_for(len(sequence.token_ids), self._block_size))
        assert blocks is not None, "only what fits is admitted"
        sequence.slot, sequence.blocks = self._slots.pop(), blocks
        self.running[sequence.request_id] = sequence
        self.num_kv_tokens += sequence.num_computed

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
        """Take slot and blocks back; the blocks are free now, or when no step in flight may write them."""
        del self.running[sequence.request_id]
        self.num_kv_tokens -= sequence.num_computed
        self._slots.append(sequence.slot)
        self.handed_over.pop(sequence.request_id, None)
        if not self.flights.rest(sequence.worker, sequence.blocks):
            self.pool.give_back(sequence.blocks)
        sequence.slot, sequence.blocks = -1, []
