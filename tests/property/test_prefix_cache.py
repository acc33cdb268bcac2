"""The scheduler with a prefix cache, under every policy: who reads what, who holds what, and what is kept.

The machine is test_scheduler's, with prompts that begin alike, with conversations that go on, and with hashes
that collide. Its runner compares every token that a row reads with the reader's own.
"""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from pipeline.core.block_pool import CACHED, FREE, OWNED, SHARED
from pipeline.core.policies import Policies
from pipeline.core.prefix import PrefixHash
from pipeline.core.prefix_cache import PrefixCache, SharedPrefixes
from pipeline.core.sequence import Sequence
from pipeline.core.tiers import Tiers
from pipeline.messages import DeviceReady, FinishReason, StepPlan, Terms
from tests.property.asked import BLOCK
from tests.property.test_scheduler import SchedulerMachine, split

SECRET = bytes(range(32))


class WeakHash(PrefixHash):
    """Of so few keys that they collide all the time."""

    num_keys = 4

    def _hash(self, kind: bytes, data: bytes) -> bytes:
        return bytes([super()._hash(kind, data)[0] % self.num_keys])


TENANTS, SALTS = ["", "gold", "silver"], ["", "", "gold", "s"]
ROOTS = {
    PrefixHash(BLOCK, "model", SECRET).first(tenant, salt, range(BLOCK)).parent
    for tenant in TENANTS
    for salt in SALTS
}
SHARED_TERMS = st.builds(
    Terms,
    tenant=st.sampled_from(TENANTS),
    priority=st.integers(0, 2),
    cache_salt=st.sampled_from(SALTS),
)


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    """All begin alike; where they part, and into which of three, differs."""
    size, fork, branch = draw(st.integers(1, 20)), draw(st.integers(0, 20)), draw(st.integers(0, 2))
    return [k if k < fork else k + 50 * branch for k in range(size)]


class SharingMachine(SchedulerMachine):
    """`owners`: on whose behalf the tokens of each block were computed; `places`: likewise in host memory."""

    cache: PrefixCache

    def new_prefixes(self, data: st.DataObject, device: DeviceReady, policies: Policies) -> SharedPrefixes:
        hashing = data.draw(st.sampled_from([PrefixHash, PrefixHash, WeakHash]))
        cost = policies.cost if device.num_host_blocks else None
        tiers = Tiers(device, policies.host, cost) if cost else None
        self.cache = PrefixCache(hashing(BLOCK, "model", SECRET), tiers=tiers)
        self.owners: dict[int, tuple[str, str]] = {}
        self.places: dict[int, tuple[str, str]] = {}
        self.written: dict[int, set[int]] = {}
        return self.cache

    @rule(prompt=prompts(), max_tokens=st.integers(1, 20), seed=st.integers(0, 1), terms=SHARED_TERMS)
    def arrive_alike(self, prompt: list[int], max_tokens: int, seed: int, terms: Terms) -> None:
        self.accept(self.new_request(prompt, max_tokens, seed, True, terms))

    @rule(prompt=prompts(), max_tokens=st.integers(1, 8), terms=SHARED_TERMS)
    def arrive_together(self, prompt: list[int], max_tokens: int, terms: Terms) -> None:
        for seed in range(3):
            self.accept(self.new_request(list(prompt), max_tokens, seed, True, terms))

    @rule(data=st.data(), more=st.lists(st.integers(0, 3), min_size=1, max_size=5), cancels=st.booleans())
    def next_turn(self, data: st.DataObject, more: list[int], cancels: bool) -> None:
        """An answer comes back in a prompt, whole or as far as it is; its request may be cancelled then."""
        if not self.requests:
            return
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        request = self.requests[request_id]
        self.accept(self.new_request([*request.token_ids, *more][:40], 4, 0, True, request.terms))
        if cancels:
            self.cancelled.add(request_id)
            self.scheduler.cancel(request_id, FinishReason.CANCELLED)

    def look_at(self, plan: StepPlan) -> None:
        """Whose tokens each block holds; nobody holds, and so reads, a block of another tenant or salt."""
        for block, place in zip(plan.saved_ids, plan.saved_places, strict=True):
            self.places[place] = self.owners.get(block, ("", ""))
        for place, block in zip(plan.loaded_places, plan.loaded_ids, strict=True):
            self.owners[block] = self.places[place]
        running = self.scheduler.residents.running
        slots = {each.slot for each in plan.admitted}
        for sequence in running.values():
            assert sequence.slot in slots or set(sequence.blocks).isdisjoint(plan.loaded_ids)
        written = self.written[plan.step_id] = set[int]()
        for row, request_id in enumerate(plan.request_ids):
            sequence, start = running[request_id], plan.num_computed[row]
            for position in range(start, start + plan.num_tokens[row]):
                block = sequence.blocks[(position - sequence.num_dropped) // BLOCK]
                self.owners[block] = owner_of(sequence)
                written.add(block)
        for sequence in running.values():
            for block in sequence.blocks[: sequence.num_entries // BLOCK]:
                assert self.owners[block] == owner_of(sequence)

    @invariant()
    def blocks_are_conserved(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        pool, running = self.scheduler.pool, self.scheduler.residents.running.values()
        resting = [
            block for each in self.scheduler.flights._flying for flight in each for block in flight.resting
        ]
        holders = Counter([*(block for each in running for block in each.blocks), *resting])
        assert all(len(set(each.blocks)) == len(each.blocks) for each in running)
        assert [pool.num_holders(block) for block in range(pool.num_blocks)] == [
            holders[block] for block in range(pool.num_blocks)
        ]
        assert pool.num_owned == len(holders)
        assert pool.num_saved == holders.total() - len(holders)
        assert self.scheduler.num_kv_tokens == sum(each.num_entries for each in running)
        states = Counter(pool.states())
        assert states[SHARED] == sum(count > 1 for count in holders.values())
        assert states[OWNED] + states[SHARED] == pool.num_owned
        assert states[CACHED] == pool.num_cached and states[FREE] == pool.num_free - pool.num_cached

    @invariant()
    def the_cache_is_whole(self) -> None:
        """Keys and blocks are one to one, every chain begins at a root, no kept block is just free."""
        if not hasattr(self, "scheduler"):
            return
        cache, pool = self.cache, self.scheduler.pool
        for block, entry in cache._on_device.items():
            assert entry.block == block and cache._entries[entry.link.key] is entry
            assert pool.states()[block] != FREE
            if entry.parent is None:
                assert entry.link.parent in ROOTS
            else:
                assert cache._on_device[entry.parent.block] is entry.parent, "nothing would find it"
                assert entry.parent.link.key == entry.link.parent
        assert states_of(cache, CACHED, pool.states()) == pool.num_cached

    @invariant()
    def what_may_be_dropped_is_not_shared(self) -> None:
        for sequence in self.scheduler.residents.running.values() if hasattr(self, "scheduler") else ():
            assert sequence.prefix.num_stored * BLOCK <= sequence.retention.num_sinks

    @invariant()
    def a_parent_is_held_by_whoever_holds_its_child(self) -> None:
        for sequence in self.scheduler.residents.running.values() if hasattr(self, "scheduler") else ():
            shared = sequence.blocks[: sequence.prefix.num_stored]
            assert [self.cache._on_device[block] for block in shared] == sequence.prefix.entries
            links = [entry.link for entry in sequence.prefix.entries]
            assert links == sequence.prefix.links[: len(shared)]
            for block in sequence.blocks[len(shared) :]:
                assert self.scheduler.pool.num_holders(block) == 1
                assert block not in self.cache._on_device

    @invariant()
    def workers_at_the_same_time_touch_other_blocks(self) -> None:
        """But for what both read: nobody writes what a step of the other one reads or writes."""
        if hasattr(self, "scheduler") and len(self.roles) > 1:
            for worker in (0, 1):
                written = (self.written[plan.step_id] for plan in self.in_flight(worker))
                touched = (self.touched[plan.step_id] for plan in self.in_flight(1 - worker))
                assert set().union(*written).isdisjoint(set().union(*touched))

    def teardown(self) -> None:
        super().teardown()
        if not hasattr(self, "scheduler"):
            return
        pool = self.scheduler.pool
        assert pool.num_owned == pool.num_saved == 0 and pool.num_cached == len(self.cache)
        for block, entry in self.cache._on_device.items():
            held = [self.runners[0]._cells[block, offset].token_id for offset in range(BLOCK)]
            assert self.cache._hash._pack(*held) == entry.link.tokens
        taken = pool.take(pool.num_blocks)
        assert taken is not None and sorted(taken) == list(range(pool.num_blocks)) and not len(self.cache)
        pool.give_back(taken)


def owner_of(sequence: Sequence) -> tuple[str, str]:
    return sequence.terms.tenant, sequence.terms.cache_salt


def states_of(cache: PrefixCache, state: int, states: bytes) -> int:
    return sum(states[block] == state for block in cache._on_device)


class Fcfs(SharingMachine):
    policy = "fcfs"


class Priority(SharingMachine):
    policy = "priority"


class Sjf(SharingMachine):
    policy = "sjf"


class Fair(SharingMachine):
    policy = "fair"


class Deadline(SharingMachine):
    policy = "deadline"


MIXED = [Fcfs, Priority, Sjf, Fair, Deadline]
MACHINES = [*MIXED, *map(split, MIXED)]
SOME = [*MIXED, MACHINES[6]]
"""For the suite: split with the policy that preempts most."""


@pytest.mark.parametrize("machine", SOME)
def test_sharing(machine: type[SharingMachine]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=150, stateful_step_count=50, deadline=None)
    )


@pytest.mark.nightly
@pytest.mark.parametrize("machine", MACHINES)
def test_sharing_at_length(machine: type[SharingMachine]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=2000, stateful_step_count=100, deadline=None)
    )
