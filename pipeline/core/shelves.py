"""Shelves: disk for cold prefix blocks, one block a shelf. Ids only; the file is gpu's.

A block reaches the disk from its place in host memory, and comes back to one. Both are moves that the disk
makes beside the steps, in the order in which they were asked for. A move holds its place and its shelf until
it is done, and places that a plan in flight touches have other holders: so neither the steps nor the disk
write what the other reads.

What is not as it was written does not come back: the disk says so, and the block is computed again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.core.block_pool import BlockPool
from pipeline.core.host_places import HostPlaces
from pipeline.core.prefix import NOWHERE, Entry, Link
from pipeline.core.sequence import Sequence
from pipeline.messages import DeviceReady, DiskMove, DiskMoved, DiskMoves, DiskReady, Shelved

MAX_STORING = 16
"""Blocks on their way to disk at once; more wait, and may be gone by then."""
BLANK_SHARE = 4
"""Unless all is to be kept, blocks go to disk once a fourth of the places or less is blank."""
MAX_FETCHING_SHARE = 2
"""At most half of the places wait for blocks on their way back."""
MAX_WAIT_NS = 1_000_000_000
"""Nobody waits longer for the disk."""
NO_DISK = DiskReady(0)


@dataclass(slots=True)
class _Move:
    entry: Entry
    place: int
    shelf: int
    is_fetch: bool


@dataclass(slots=True, eq=False)
class _Wait:
    """Of one sequence, for its blocks."""

    sequence: Sequence
    until_ns: int
    entries: set[Entry] = field(default_factory=set)


class Shelves:
    """Which shelf holds what, what is on its way, and who waits for it."""

    def __init__(self, device: DeviceReady, host: HostPlaces) -> None:
        self.fetch_ns = 0.0
        """What it takes to fetch a block; 0: not known."""
        self.num_stored = self.num_fetched = self.num_corrupt = 0
        self.lost: Callable[[Entry], None] = lambda entry: None
        """Is told of an entry that is nowhere any more."""
        self._host = host
        self._next_id = 0
        self.renew(device)

    def renew(self, device: DeviceReady) -> None:
        """The disk is as it says now: nothing is on its way, and nobody waits."""
        disk = device.disk or NO_DISK
        self.keeps = disk.keeps
        self.is_open = disk.num_shelves > 0
        self.fault = ""
        self.num_corrupt += disk.num_corrupt
        self.pool = BlockPool(disk.num_shelves, self._taken)
        self._block_bytes = device.block_bytes
        self._disk = disk
        self._entries: dict[int, Entry] = {}
        """By shelf."""
        self._offered: dict[Entry, None] = {}
        self._moves: dict[int, _Move] = {}
        self._fetching: dict[Entry, list[_Wait]] = {}
        self._waits: dict[int, _Wait] = {}
        """By request id."""
        self._released: list[Sequence] = []
        self._outbox: list[DiskMove] = []

    def restored(self) -> list[Entry]:
        """Entries of what was found on disk: those whose chain is whole."""
        latest = {shelved.key: shelved for shelved in self._disk.kept}
        behind: dict[bytes, list[Shelved]] = {}
        for shelved in latest.values():
            behind.setdefault(b"" if shelved.is_first else shelved.parent, []).append(shelved)
        level: list[tuple[Entry | None, Shelved]] = [(None, each) for each in behind.pop(b"", [])]
        while level:
            before, (shelf, _, *link) = level.pop()
            entry = Entry(Link(*link), before, before.depth + 1 if before else 0, shelf=shelf)
            self._entries[shelf] = entry
            level += [(entry, each) for each in behind.pop(entry.link.key, [])]
        self._occupy(sorted(self._entries, key=lambda shelf: self._entries[shelf].depth))
        return list(self._entries.values())

    def _occupy(self, shelves: list[int]) -> None:
        """These hold something, all others are blank; none is taken so far."""
        taken = self.pool.take(self.pool.num_blocks) or []
        self.pool.keep(shelves)
        self.pool.give_back([*sorted(set(taken) - set(shelves)), *shelves])

    # host -> disk ---------------------------------------------------------------------------

    def offer(self, entry: Entry) -> None:
        """Its content is in its place."""
        if self.is_open and entry.shelf == NOWHERE:
            self._offered[entry] = None

    def withdraw(self, entry: Entry) -> None:
        """Its place is another one, in which its content is not yet: it will be offered again."""
        self._offered.pop(entry, None)

    def take_moves(self) -> DiskMoves | None:
        """What was asked for since the last call."""
        self._store_offered()
        if not self._outbox:
            return None
        moves, self._outbox = self._outbox, []
        return DiskMoves(moves)

    def _store_offered(self) -> None:
        pool = self._host.pool
        if not (self.keeps or pool.num_blank * BLANK_SHARE <= pool.num_blocks):
            return
        while self._offered and len(self._moves) - len(self._fetching) < MAX_STORING:
            entry = next(iter(self._offered))
            if entry.place != NOWHERE and entry.shelf == NOWHERE:
                shelves = self.pool.take(1)
                if shelves is None:
                    return
                pool.share([entry.place])
                self._start(entry, entry.place, shelves[0], is_fetch=False)
            del self._offered[entry]

    # disk -> host ---------------------------------------------------------------------------

    def fetch(self, sequence: Sequence, chain: list[Entry], now_ns: int, compute_ns: float) -> bool:
        """Bring to host memory what of these is only here; whether the sequence waits for any of it.

        Args:
            chain: none is on the device.
            compute_ns: what computing the same takes; 0: not known.
        """
        held = [entry.place for entry in chain if entry.place != NOWHERE]
        self._host.pool.share(held)
        wait = _Wait(sequence, now_ns + int(min(compute_ns or MAX_WAIT_NS, MAX_WAIT_NS)))
        for entry in chain:
            if entry.place == NOWHERE:
                if entry not in self._fetching and not self._fetch(entry):
                    break
                self._fetching[entry].append(wait)
                wait.entries.add(entry)
        self._host.pool.give_back(held)
        if wait.entries:
            self._waits[sequence.request_id] = wait
        return bool(wait.entries)

    def _fetch(self, entry: Entry) -> bool:
        if len(self._fetching) * MAX_FETCHING_SHARE >= self._host.pool.num_blocks:
            return False
        places = self._host.pool.take(1)
        if places is None:
            return False
        self.pool.share([entry.shelf])
        self._fetching[entry] = []
        self._start(entry, places[0], entry.shelf, is_fetch=True)
        return True

    def released(self, now_ns: int) -> list[Sequence]:
        """Sequences that have waited long enough, or for all that comes."""
        if self._waits:
            for wait in [each for each in self._waits.values() if each.until_ns <= now_ns]:
                self._release(wait)
        released, self._released = self._released, []
        return released

    @property
    def is_moving(self) -> bool:
        """Something is on its way, or to be."""
        return bool(self._moves or (self.keeps and self._offered))

    @property
    def wake_ns(self) -> int | None:
        """When the first has waited long enough."""
        return min((each.until_ns for each in self._waits.values()), default=None)

    def _release(self, wait: _Wait) -> None:
        if self._waits.get(wait.sequence.request_id) is wait:
            del self._waits[wait.sequence.request_id]
            self._released.append(wait.sequence)

    # Moves ----------------------------------------------------------------------------------

    def _start(self, entry: Entry, place: int, shelf: int, *, is_fetch: bool) -> None:
        self._next_id += 1
        self._moves[self._next_id] = _Move(entry, place, shelf, is_fetch)
        is_first = entry.parent is None
        self._outbox.append(DiskMove(self._next_id, place, shelf, is_fetch, is_first, *entry.link))

    def moved(self, moved: DiskMoved) -> None:
        """The disk has tried; `are_good` says with what success."""
        moves = [self._moves.pop(move_id) for move_id in moved.move_ids]
        for move, is_good in zip(moves, moved.are_good, strict=True):
            (self._fetched if move.is_fetch else self._stored)(move, is_good, moved.fault)
        self._learn(moved.fetch_ns, sum(move.is_fetch for move in moves))
        moves.sort(key=lambda move: move.entry.depth)  # the ends of chains are taken before their beginnings
        self._host.pool.give_back([move.place for move in moves])
        self._host.pool.take_first([move.place for move in moves if not move.is_fetch])
        self.pool.give_back([move.shelf for move in moves])
        if moved.fault and self.is_open:
            self._close(moved.fault)

    def _learn(self, fetch_ns: int, num_fetched: int) -> None:
        if num_fetched:
            block_ns = fetch_ns / num_fetched
            self.fetch_ns = 0.8 * self.fetch_ns + 0.2 * block_ns if self.fetch_ns else block_ns

    def _stored(self, move: _Move, is_good: bool, fault: str) -> None:
        entry = move.entry
        if is_good and entry.place == move.place and self.is_open:
            self.num_stored += 1
            entry.shelf, self._entries[move.shelf] = move.shelf, entry
            self.pool.keep([move.shelf])

    def _fetched(self, move: _Move, is_good: bool, fault: str) -> None:
        entry = move.entry
        if not is_good:
            self.num_corrupt += not fault
            if entry.shelf == move.shelf:
                self.discard(entry)
                self._tell_if_lost(entry)
        elif entry.shelf == move.shelf:
            self.num_fetched += 1
            if entry.place == NOWHERE:
                entry.is_from_disk = True
                self._host.assign(entry, move.place)
        for wait in self._fetching.pop(entry):
            wait.entries.discard(entry)
            if not wait.entries:
                self._release(wait)

    def discard(self, entry: Entry) -> None:
        """What is on its shelf is of no use. A no-op if it has none."""
        if entry.shelf != NOWHERE:
            self.pool.discard(entry.shelf)
            del self._entries[entry.shelf]
            entry.shelf = NOWHERE

    def _close(self, fault: str) -> None:
        """The disk cannot be used any more: all goes on without it."""
        self.is_open, self.fault = False, fault
        self._offered.clear()
        for entry in list(self._entries.values()):
            self.discard(entry)
            self._tell_if_lost(entry)

    def _taken(self, shelf: int) -> None:
        entry = self._entries.pop(shelf)
        entry.shelf = NOWHERE
        self._tell_if_lost(entry)

    def _tell_if_lost(self, entry: Entry) -> None:
        if entry.is_lost:
            self.lost(entry)

    def gauges(self, num_hit_tokens: int) -> dict[str, float]:
        if not self._disk.num_shelves:
            return {}
        return {
            "prefix_disk_hit_tokens_total": num_hit_tokens,
            "disk_blocks": self.pool.num_blocks,
            "disk_blocks_cached": len(self._entries),
            "disk_stored_blocks_total": self.num_stored,
            "disk_fetched_blocks_total": self.num_fetched,
            "disk_stored_bytes_total": self.num_stored * self._block_bytes,
            "disk_fetched_bytes_total": self.num_fetched * self._block_bytes,
            "disk_corrupt_blocks_total": self.num_corrupt,
            "disk_disabled": float(bool(self.fault)),
        }
