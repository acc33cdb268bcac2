"""Tiers: prefix blocks that the device has no room for go to host memory, from there to disk, and back.

device -> host: a save of the plan that takes the block. Once the device is half full, blocks are saved before
they are taken, oldest first, so that taking costs nothing. host -> device: loads of the plan that admits who
asks for them. What a plan copies is bounded: saves take 1 ms or a tenth of the step, whichever is more, and a
block past that is forgotten; loads take no longer than a step full of prefill, and what comes behind is
computed.

Everything is by cost, as core.policies.eviction has it: where computing a block is quicker than bringing it
back, the tiers are left alone. The disk moves beside the steps: core.shelves.
"""

from collections.abc import Callable, Iterable

from pipeline.core.host_places import HostPlaces
from pipeline.core.prefix import NOWHERE, Entry
from pipeline.core.sequence import Sequence
from pipeline.core.shelves import Shelves
from pipeline.core.step_cost import StepCost
from pipeline.messages import DeviceReady, DiskMoved, DiskMoves

MAX_SAVE_NS = 1_000_000
"""A plan's saves take so long, or"""
MAX_SAVE_SHARE = 0.1
"""so much of its step."""
AHEAD_SHARE = 2
"""Blocks are saved before they are taken once half of the device's hold prefixes."""
UNMEASURED_BLOCKS = 32
"""Copied by one plan where nobody knows what a copy takes."""


class Tiers:
    """What the prefix cache tells of its blocks, and asks for them.

    Args:
        host: places, shared with the sequences that are swapped out; it may have none.
        cost: what steps have cost so far.
    """

    def __init__(self, device: DeviceReady, host: HostPlaces, cost: StepCost) -> None:
        self.num_saved = self.num_loaded = self.num_dropped = self.num_disk_hits = 0
        """Blocks copied to host memory, back from it, not copied for want of time or room; of those that
        came back, they that had been on disk."""
        self.host = host
        self.shelves = Shelves(device, host)
        self._cost = cost
        self._begin(device)

    def renew(self, device: DeviceReady) -> None:
        """Device and host memory hold nothing so far (`host` is renewed already); the disk is as it says."""
        self.shelves.renew(device)
        self._begin(device)

    def _begin(self, device: DeviceReady) -> None:
        self._device = device
        self._num_on_device = 0
        """Entries."""
        self._fresh: list[Entry] = []
        """Filled by the step that is being planned: not there before it."""
        self._unsaved: dict[Entry, None] = {}
        self._saves_left = self._base_saves
        self._loads_left = self._most_loads()

    @classmethod
    def none(cls) -> "Tiers":
        device = DeviceReady(0, 1, 0, 0)
        return cls(device, HostPlaces(device), StepCost())

    def open(self, lost: Callable[[Entry], None]) -> None:
        """`lost` is told of entries that are nowhere any more."""
        self.host.is_tier = True
        self.host.lost = self.shelves.lost = lost
        self.host.written, self.host.unwritten = self.shelves.offer, self.shelves.withdraw

    def restored(self) -> list[Entry]:
        """What an earlier process has left on disk."""
        return self.shelves.restored()

    # device -> host -------------------------------------------------------------------------

    def stored(self, entry: Entry) -> None:
        """It has come to the device, or will by the plan under way."""
        self._num_on_device += 1
        if self.host.pool.num_blocks:
            self._fresh.append(entry)

    def taken(self, entry: Entry, block: int) -> None:
        """Its block will be written to."""
        self._num_on_device -= 1
        if not self.host.pool.num_blocks:
            return
        self._unsaved.pop(entry, None)
        if entry.place == NOWHERE and not self._save(entry, block):
            self.num_dropped += 1

    def planned(self, num_prefill_tokens: int, num_decode_tokens: int, num_kv_tokens: int) -> None:
        """A plan is complete but for what is saved ahead."""
        if not self.host.pool.num_blocks:
            return
        step_ns = self._cost.predict_ns(num_prefill_tokens, num_decode_tokens, num_kv_tokens)
        self._saves_left += max(0, self._copies_within(MAX_SAVE_SHARE * step_ns) - self._base_saves)
        is_ahead = self.shelves.keeps or self._num_on_device * AHEAD_SHARE >= self._device.num_blocks
        while is_ahead and self._unsaved and self._saves_left:
            entry = next(iter(self._unsaved))
            del self._unsaved[entry]
            if entry.place == NOWHERE and not self._save(entry, entry.block):
                break
        self._unsaved.update((entry, None) for entry in self._fresh if entry.block != NOWHERE)
        self._fresh.clear()
        self._saves_left, self._loads_left = self._base_saves, self._most_loads()

    def _save(self, entry: Entry, block: int) -> bool:
        if not self._saves_left or not self._pays(self._device.block_copy_ns):
            return False
        places = self.host.pool.take(1)
        if places is None:
            return False
        self._saves_left -= 1
        self.num_saved += 1
        self.host.assign(entry, places[0])
        self.host.save(block, places[0])
        self.host.pool.give_back(places)
        return True

    # host -> device -------------------------------------------------------------------------

    def hold(self, entry: Entry) -> bool:
        """Whether this plan may load it: its place is held until it is."""
        if not self._loads_left or not self._pays(self._device.block_copy_ns):
            return False
        self._loads_left -= 1
        self.host.pool.share([entry.place])
        return True

    def load(self, entry: Entry) -> None:
        """Into its block; what is in its place stays."""
        self.num_loaded += 1
        self._num_on_device += 1
        self.num_disk_hits += entry.is_from_disk
        entry.is_from_disk = False
        self.host.load(entry.place, entry.block)
        self.host.pool.give_back([entry.place])

    # disk -----------------------------------------------------------------------------------

    def expect(self, sequence: Sequence, chain: Iterable[Entry], now_ns: int) -> bool:
        """Whether some of this chain, which the sequence begins with, is being brought from disk for it.

        It waits no longer than computing the same would take.
        """
        if not self.shelves.is_open or not self._pays(self.shelves.fetch_ns + self._device.block_copy_ns):
            return False
        away = [entry for entry in chain if entry.block == NOWHERE][: self._most_loads()]
        size = self._device.block_size
        compute_ns = size * sum(entry.place == NOWHERE for entry in away) * self._token_ns
        return self.shelves.fetch(sequence, away, now_ns, compute_ns)

    def released(self, now_ns: int) -> list[Sequence]:
        return self.shelves.released(now_ns)

    @property
    def wake_ns(self) -> int | None:
        return self.shelves.wake_ns

    def take_moves(self) -> DiskMoves | None:
        return self.shelves.take_moves()

    def moved(self, moved: DiskMoved) -> None:
        self.shelves.moved(moved)

    def discard(self, entry: Entry) -> None:
        """It is behind one that is lost, and its key is wanted."""
        self.host.discard(entry)
        self.shelves.discard(entry)

    def gauges(self) -> dict[str, float]:
        if not self.host.pool.num_blocks:
            return {}
        size, num_bytes = self._device.block_size, self._device.block_bytes
        return {
            "host_saved_blocks_total": self.num_saved,
            "host_loaded_blocks_total": self.num_loaded,
            "host_saved_bytes_total": self.num_saved * num_bytes,
            "host_loaded_bytes_total": self.num_loaded * num_bytes,
            "host_dropped_blocks_total": self.num_dropped,
            "prefix_host_hit_tokens_total": (self.num_loaded - self.num_disk_hits) * size,
            **self.shelves.gauges(self.num_disk_hits * size),
        }

    # Costs ----------------------------------------------------------------------------------

    @property
    def _token_ns(self) -> float:
        """Of computing one; 0: not known."""
        return self._cost.coefficients.per_prefill_token if self._cost.is_ready else 0.0

    def _pays(self, block_ns: float) -> bool:
        """Bringing a block back takes so long. Until more is known, that is quicker than computing."""
        compute_ns = self._token_ns * self._device.block_size
        return not compute_ns or block_ns < compute_ns

    @property
    def _base_saves(self) -> int:
        return max(1, self._copies_within(MAX_SAVE_NS))

    def _most_loads(self) -> int:
        step_ns = self._token_ns * self._device.max_num_batched_tokens
        return max(1, self._copies_within(step_ns)) if step_ns else self.host.pool.num_blocks

    def _copies_within(self, time_ns: float) -> int:
        copy_ns = self._device.block_copy_ns
        return int(time_ns / copy_ns) if copy_ns else UNMEASURED_BLOCKS
