"""HostPlaces: host memory for KV, one block a place, and the copies of the plan that is being made.

Two kinds of content share it. A place has holders while a preempted sequence will want it back, a plan in
flight copies from or to it, or the disk does. A place without one may hold a cold prefix block: that counts
as free and is taken when no blank one is left, the one used longest ago first. So what a waiting client needs
pushes out what somebody may ask for, never the other way round.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pipeline.core.block_pool import BlockPool
from pipeline.core.prefix import NOWHERE, Entry
from pipeline.messages import DeviceReady


class BlockCopies(NamedTuple):
    """Columns of a StepPlan; see there."""

    saved_ids: list[int]
    saved_places: list[int]
    loaded_places: list[int]
    loaded_ids: list[int]


class HostPlaces:
    """Ids only; the memory is gpu's.

    Why copies come at the right time: a plan's copies run after all steps before it, and before its own,
    saves before loads. So a save sees every token that was planned before, and a block that is free since
    then is not written to before it is saved. A place that a plan touches is held until the plan is applied:
    so no plan and no disk writes to it meanwhile.
    """

    def __init__(self, device: DeviceReady) -> None:
        self.is_tier = False
        """Prefix blocks are kept here, and found: core.tiers."""
        self.lost: Callable[[Entry], None] = lambda entry: None
        """Is told of an entry that lost its place and is nowhere else."""
        self.written: Callable[[Entry], None] = lambda entry: None
        """Is told of an entry whose content has arrived in its place."""
        self.unwritten: Callable[[Entry], None] = lambda entry: None
        """Is told of an entry that has got a place in which its content is not yet."""
        self.renew(device)

    def renew(self, device: DeviceReady) -> None:
        """Nothing is in any place so far, and nobody holds one."""
        self.pool = BlockPool(device.num_host_blocks, self._taken)
        self._entries: dict[int, Entry] = {}
        """By place."""
        self._saves: dict[int, int] = {}
        """Of the next plan: place and block."""
        self._loads: list[tuple[int, int]] = []
        self._flying: deque[tuple[int, list[int], list[int]]] = deque()
        """Step, places it saves to, places it loads from."""

    def assign(self, entry: Entry, place: int) -> None:
        """What `entry` stands for is there, or will be once the next plan has run. `place` is held."""
        entry.place, self._entries[place] = place, entry
        self.pool.keep([place])
        self.unwritten(entry)

    def discard(self, entry: Entry) -> None:
        """What is in its place is not worth keeping. A no-op if it has none."""
        if entry.place != NOWHERE:
            self.pool.discard(entry.place)
            del self._entries[entry.place]
            entry.place = NOWHERE

    def save(self, block: int, place: int) -> None:
        self.pool.share([place])
        self._saves[place] = block

    def unsave(self, places: list[int]) -> None:
        """The next plan need not save to these, but for what an entry stands for."""
        for place in places:
            is_mine = place not in self._entries and self.pool.num_holders(place) == 2  # mine and the plan's
            if is_mine and self._saves.pop(place, None) is not None:
                self.pool.give_back([place])

    def load(self, place: int, block: int) -> None:
        self.pool.share([place])
        self._loads.append((place, block))

    def seal(self, step_id: int) -> BlockCopies:
        """What the plan of this step copies before it, given away. Once a plan."""
        saves, loads = self._saves, self._loads
        if not (saves or loads):
            return BlockCopies([], [], [], [])
        self._saves, self._loads = {}, []
        sources = [place for place, _ in loads]
        self._flying.append((step_id, list(saves), sources))
        return BlockCopies(list(saves.values()), list(saves), sources, [block for _, block in loads])

    def applied(self, step_id: int) -> None:
        """This step, and so all before it, have run."""
        while self._flying and self._flying[0][0] <= step_id:
            _, saved, loaded = self._flying.popleft()
            self.pool.give_back(loaded)
            self.pool.give_back(sorted(saved, key=self._depth))  # so that ends of chains are taken first
            for place in saved:
                if place in self._entries:
                    self.written(self._entries[place])

    def gauges(self) -> dict[str, float]:
        if not self.pool.num_blocks:
            return {}
        return {
            "host_blocks": self.pool.num_blocks,
            "host_blocks_used": self.pool.num_owned,
            "host_blocks_cached": self.pool.num_cached,
        }

    def _depth(self, place: int) -> int:
        entry = self._entries.get(place)
        return entry.depth if entry else 0

    def _taken(self, place: int) -> None:
        entry = self._entries.pop(place)
        entry.place = NOWHERE
        if entry.is_lost:
            self.lost(entry)
