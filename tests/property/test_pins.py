"""Pinned prompts under every rule of the sharing machine: the pinned go last, and are in nobody's way."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from pipeline.core.pins import Pins
from pipeline.core.policies import Policies
from pipeline.core.prefix_cache import SharedPrefixes
from pipeline.messages import DeviceReady, Terms
from tests.property.test_prefix_cache import SALTS, TENANTS, SharingMachine, prompts
from tests.property.test_scheduler import split

PINNING = st.builds(
    Terms, tenant=st.sampled_from(TENANTS), cache_salt=st.sampled_from(SALTS), cache_pin=st.just(True)
)


class PinningMachine(SharingMachine):
    @property
    def pins(self) -> Pins:
        assert self.scheduler.residents.pins is not None
        return self.scheduler.residents.pins

    def new_prefixes(self, data: st.DataObject, device: DeviceReady, policies: Policies) -> SharedPrefixes:
        self.max_pinned_blocks = data.draw(st.integers(1, 6))
        cache = super().new_prefixes(data, device, policies)
        forget = cache.forget

        def forget_last(block: int) -> None:
            """Told before the block is anybody's: a pinned one is no longer, for it is on its way out."""
            num_pinned = self.pins.num_pinned
            if num_pinned < self.num_pinned:
                pool = self.scheduler.pool
                assert not pool._free and not self.pins._idle, "another one was free"
            self.num_pinned = num_pinned
            forget(block)

        cache.forget = forget_last  # type: ignore[method-assign]
        self.num_pinned = 0
        return cache

    @rule(prompt=prompts(), max_tokens=st.integers(1, 20), seed=st.integers(0, 1), terms=PINNING)
    def arrive_to_pin(self, prompt: list[int], max_tokens: int, seed: int, terms: Terms) -> None:
        self.accept(self.new_request(prompt, max_tokens, seed, True, terms))

    @rule()
    def clear_pins(self) -> None:
        num_cached = self.scheduler.pool.num_cached
        self.pins.clear()
        assert not self.pins.num_pinned and self.scheduler.pool.num_cached == num_cached

    @invariant()
    def pins_are_bounded_chains_of_cached_blocks(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        pins, cache = self.pins, self.cache
        assert pins.num_pinned <= pins.max_blocks
        order = {block: place for place, block in enumerate(pins._pinned)}
        for block, place in order.items():
            parent = cache._on_device[block].parent
            assert parent is None or order[parent.block] > place, "a parent is released after it"
        assert set(pins._idle_pinned) <= set(pins._pinned) and set(pins._idle).isdisjoint(pins._pinned)
        assert len(pins) == self.scheduler.pool.num_cached
        self.num_pinned = pins.num_pinned

    def teardown(self) -> None:
        super().teardown()  # which takes all blocks, pinned ones too
        if hasattr(self, "scheduler"):
            assert not self.pins.num_pinned and not len(self.pins)


class Fcfs(PinningMachine):
    policy = "fcfs"


class Priority(PinningMachine):
    policy = "priority"


MACHINES = [Fcfs, split(Priority)]


@pytest.mark.parametrize("machine", MACHINES)
def test_pins(machine: type[PinningMachine]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )


@pytest.mark.nightly
@pytest.mark.parametrize("machine", MACHINES)
def test_pins_at_length(machine: type[PinningMachine]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=2000, stateful_step_count=100, deadline=None)
    )
