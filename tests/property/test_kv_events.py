"""KV events under every rule of the sharing machine: their sum is what the cache holds."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, run_state_machine_as_test

from pipeline.core.kv_events import Event, KvEvents
from pipeline.core.policies import Policies
from pipeline.core.prefix_cache import SharedPrefixes
from pipeline.messages import DeviceReady
from tests.property.test_prefix_cache import SECRET, SharingMachine
from tests.property.test_scheduler import split

KEPT = 7


class TellingMachine(SharingMachine):
    """`told` is the sum of all events, as a subscriber keeps it: key to parent."""

    def new_prefixes(self, data: st.DataObject, device: DeviceReady, policies: Policies) -> SharedPrefixes:
        cache = super().new_prefixes(data, device, policies)
        self.events = KvEvents(KEPT, SECRET)
        self.cache._events = self.events
        self.told: dict[bytes, bytes] = {}
        self.next_seq = self.events.last_seq + 1
        self.events.subscribe(self.hear)
        return cache

    def hear(self) -> None:
        (event,) = self.events.since(self.next_seq) or ()
        assert event.seq == self.next_seq
        self.next_seq += 1
        self.sum_up(self.told, event)

    def sum_up(self, told: dict[bytes, bytes], event: Event) -> None:
        assert event.link is not None
        if event.kind == "removed":
            assert event.link.key not in told.values(), "a child goes before its parent"
            del told[event.link.key]
            return
        assert event.kind == "stored" and event.link.key not in told
        assert event.is_first != (event.link.parent in told), "a parent comes before its child"
        told[event.link.key] = event.link.parent

    @invariant()
    def their_sum_is_what_is_cached(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        links = [entry.link for entry in self.cache._on_device.values()]
        assert self.told == {link.key: link.parent for link in links}
        cleared, *stored = self.events.snapshot()
        assert cleared.kind == "cleared"
        anew: dict[bytes, bytes] = {}
        for event in stored:
            self.sum_up(anew, event)
        assert anew == self.told

    @invariant()
    def the_latest_are_kept(self) -> None:
        if hasattr(self, "scheduler"):
            last = self.events.last_seq
            assert self.events.first_seq == max(1, last - KEPT + 1)
            assert self.events.since(self.events.first_seq - 1) is None is self.events.since(last + 2)
            assert self.events.since(last + 1) == []
            assert [event.seq for event in self.events.since(last) or ()] == [last]


class Fcfs(TellingMachine):
    policy = "fcfs"


class Fair(TellingMachine):
    policy = "fair"


MACHINES = [Fcfs, split(Fair)]


@pytest.mark.parametrize("machine", MACHINES)
def test_kv_events(machine: type[TellingMachine]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=40, stateful_step_count=40, deadline=None)
    )


@pytest.mark.nightly
@pytest.mark.parametrize("machine", MACHINES)
def test_kv_events_at_length(machine: type[TellingMachine]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=2000, stateful_step_count=100, deadline=None)
    )
