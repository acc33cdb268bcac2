"""The scheduler with host memory and a disk behind the prefix cache: what comes back is what was put there.

The machine is test_prefix_cache's. Its disk works at any time between the steps, answers later, finds blocks
that are not as they were written, and fails for good. Every token that a row reads is compared with the
reader's own, so a block that came from a wrong place, too late or too early would be seen.
"""

import struct
from collections import Counter, deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from pipeline.core.policies import Policies
from pipeline.core.prefix import NOWHERE, Entry
from pipeline.core.prefix_cache import SharedPrefixes
from pipeline.core.shelves import Shelves
from pipeline.messages import DeviceReady, DiskMove, DiskMoved, DiskMoves, DiskReady, Shelved, Terms
from pipeline.runtime.testing import Cell
from tests.property.asked import BLOCK, CREDITS
from tests.property.test_prefix_cache import SharingMachine

GARBAGE: list[Cell | None] = [Cell(-1, -1, -1)] * BLOCK


class TieredMachine(SharingMachine):
    """`disk`: name, cells and owner of what is on each shelf."""

    policy = "fcfs"

    def with_tiers(self, data: st.DataObject, device: DeviceReady) -> DeviceReady:
        self.disk: dict[int, tuple[Shelved, list[Cell | None], tuple[str, str]]] = {}
        self.asked_moves: deque[DiskMoves] = deque()
        self.answers: deque[DiskMoved] = deque()
        self.bad_shelves: set[int] = set()
        """What is there is not as it was written; known when it is fetched."""
        self.fault = ""
        self.is_ending = False
        num_places = data.draw(st.sampled_from([2, 4, 8, 30]))
        num_shelves = data.draw(st.sampled_from([0, 1, 5, 40]))
        return replace(
            device,
            num_host_blocks=num_places,
            disk=DiskReady(num_shelves, data.draw(st.booleans())) if num_shelves else None,
        )

    def new_prefixes(self, data: st.DataObject, device: DeviceReady, policies: Policies) -> SharedPrefixes:
        prefixes = super().new_prefixes(data, device, policies)
        assert self.cache.tiers.host is policies.host
        return prefixes

    @property
    def shelves(self) -> Shelves:
        return self.cache.tiers.shelves

    @rule(data=st.data(), more=st.lists(st.integers(0, 3), min_size=1, max_size=5))
    def come_back(self, data: st.DataObject, more: list[int]) -> None:
        """With the tokens of what is in host memory or on disk alone."""
        entries = [entry for entry in self.cache._entries.values() if self.is_away_and_whole(entry)]
        if away := [entry for entry in entries if entry.place == NOWHERE] or entries:
            entry: Entry | None = data.draw(st.sampled_from(away))
            owner = self.owner_of_entry(entry) if entry else ("", "")
            token_ids: list[int] = []
            while entry is not None:
                token_ids[:0] = struct.unpack(f"<{BLOCK}I", entry.link.tokens)
                entry = entry.parent
            terms = Terms(tenant=owner[0], cache_salt=owner[1])
            self.accept(self.new_request([*token_ids, *more], 4, 0, True, terms))

    def is_away_and_whole(self, entry: Entry) -> bool:
        """It is not on the device, and all before it are somewhere."""
        each: Entry | None = entry
        while each is not None:
            if self.cache._entries.get(each.link.key) is not each:
                return False
            each = each.parent
        return entry.block == NOWHERE

    def owner_of_entry(self, entry: Entry) -> tuple[str, str]:
        return self.places[entry.place] if entry.place != NOWHERE else self.disk[entry.shelf][2]

    @rule()
    def host_memory_is_wanted(self) -> None:
        """All that nobody holds, for a moment: what was cached there is on disk, or gone."""
        for _ in range(3):
            self.ask_disk()
            self.disk_works(False)
            self.disk_answers()
        pool = self.scheduler.policies.host.pool
        taken = pool.take(pool.num_free)
        assert taken is not None
        pool.give_back(taken)

    @rule()
    def ask_disk(self) -> None:
        moves = self.cache.take_moves()
        if moves is not None:
            self.asked_moves.append(moves)

    @rule(is_bad=st.sampled_from([False, False, False, True]))
    def disk_works(self, is_bad: bool) -> None:
        if self.asked_moves:
            moves = self.asked_moves.popleft().moves
            are_good = [self.try_move(move, is_bad) for move in moves]
            ids = [move.move_id for move in moves]
            self.answers.append(DiskMoved(ids, are_good, 5 * len(moves), self.fault))

    @rule()
    def disk_answers(self) -> None:
        if self.answers:
            self.cache.moved(self.answers.popleft())

    @rule(really=st.sampled_from([False] * 19 + [True]))
    def disk_fails(self, really: bool) -> None:
        if really:
            self.fault = "it is full"

    def apply(self, worker: int) -> None:
        """The disk is asked after each result, as by the stage; when it works and answers is open."""
        super().apply(worker)
        self.ask_disk()
        if self.now % 3:
            self.disk_works(self.now % 5 == 0)
        if self.now % 2:
            self.disk_answers()

    def try_move(self, move: DiskMove, is_bad: bool) -> bool:
        """As DiskKv does it; and nothing that the steps still have to do touches what it moves."""
        runner = self.runners[0]
        for plan in self.planned[0]:
            assert move.place not in plan.saved_places
            assert not (move.is_fetch and move.place in plan.loaded_places)
        if self.fault:
            return False
        if not move.is_fetch:
            name = Shelved(move.shelf, move.is_first, move.parent, move.tokens, move.key)
            self.bad_shelves.discard(move.shelf)
            self.disk[move.shelf] = (name, list(runner._host_cells[move.place]), self.places[move.place])
            return True
        name, cells, owner = self.disk[move.shelf]
        assert name.key == move.key and name.tokens == move.tokens and name.parent == move.parent
        if is_bad:
            self.bad_shelves.add(move.shelf)
        if move.shelf in self.bad_shelves:
            runner._host_cells[move.place] = GARBAGE
            return False
        runner._host_cells[move.place], self.places[move.place] = list(cells), owner
        return True

    def plan(self, worker: int) -> None:
        if self.is_ending:
            self.ask_disk()
            self.disk_works(False)
            self.disk_answers()
        if self.scheduler.num_in_flight_of(worker) < CREDITS:
            super().plan(worker)

    def places_on_the_move(self) -> list[int]:
        return [move.place for move in self.shelves._moves.values()] if hasattr(self, "cache") else []

    @invariant()
    def shelves_are_conserved(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        shelves = self.shelves
        holders = Counter(move.shelf for move in shelves._moves.values())
        num_shelves = shelves.pool.num_blocks
        assert [shelves.pool.num_holders(shelf) for shelf in range(num_shelves)] == [
            holders[shelf] for shelf in range(num_shelves)
        ]
        for shelf, entry in shelves._entries.items():
            assert entry.shelf == shelf
            assert shelf in holders or shelf in shelves.pool._idle
        assert shelves.pool.num_cached == len(set(shelves._entries) - set(holders))
        waiting = {k for k, each in self.scheduler._live.items() if each.is_fetching}
        assert waiting <= set(shelves._waits) | {each.request_id for each in shelves._released}

    @invariant()
    def every_entry_is_somewhere(self) -> None:
        """And what its tier holds of it is what its name says, unless it is still on its way."""
        if not hasattr(self, "scheduler"):
            return
        host = self.scheduler.policies.host
        for key, entry in self.cache._entries.items():
            assert entry.link.key == key and not entry.is_lost
            assert entry.block == NOWHERE or self.cache._on_device[entry.block] is entry
            assert entry.place == NOWHERE or host._entries[entry.place] is entry
            assert entry.shelf == NOWHERE or self.shelves._entries[entry.shelf] is entry
        if not self.fault:
            for entry in self.shelves._entries.values():
                self.check(entry, self.disk[entry.shelf][1])
        pending = {place for plan in self.planned[0] for place in plan.saved_places}
        pending |= set(host._saves)
        for place, entry in host._entries.items():
            if place not in pending:
                self.check(entry, self.runners[0]._host_cells[place])

    def check(self, entry: Entry, cells: list[Cell | None]) -> None:
        held = [cell.token_id if cell else -1 for cell in cells]
        assert self.cache._hash._pack(*held) == entry.link.tokens
        assert [cell.position for cell in cells if cell] == list(
            range(entry.depth * BLOCK, (entry.depth + 1) * BLOCK)
        )

    def teardown(self) -> None:
        self.is_ending = True
        super().teardown()
        if hasattr(self, "scheduler"):
            self.settle()
            host = self.scheduler.policies.host
            assert host.pool.num_owned == len(host._saves) and not self.shelves.pool.num_owned
            self.check_restart()

    def settle(self) -> None:
        for _ in range(200):
            self.ask_disk()
            self.disk_works(False)
            self.disk_answers()
        assert not self.shelves._moves and not self.shelves._waits

    def check_restart(self) -> None:
        """The next process finds what it can find; each entry with its own tokens."""
        kept = tuple(name for name, _, _ in self.disk.values())
        device = replace(self.scheduler.device, disk=DiskReady(40, True, b"", kept))
        shelves = Shelves(device, self.scheduler.policies.host)
        for entry in shelves.restored():
            assert self.disk[entry.shelf][0][2:] == entry.link
            assert entry.parent is None or entry.parent.link.key == entry.link.parent
        assert shelves.pool.num_cached == len(shelves._entries) <= len(kept)


class TieredFair(TieredMachine):
    policy = "fair"


class TieredPriority(TieredMachine):
    policy = "priority"


MACHINES = [TieredMachine, TieredFair, TieredPriority]


@pytest.mark.parametrize("machine", MACHINES)
def test_tiers(machine: type[TieredMachine]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=100, stateful_step_count=60, deadline=None)
    )


@pytest.mark.nightly
@pytest.mark.parametrize("machine", MACHINES)
def test_tiers_at_length(machine: type[TieredMachine]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=3000, stateful_step_count=100, deadline=None)
    )
