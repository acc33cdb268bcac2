"""The gate against a queue in virtual time: its predictions come true, and its sums stay exact."""

import heapq
import random
from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from pipeline.core.gate import MAX_RETRY_AFTER_S, Gate, allowed_wait_ns
from pipeline.core.standing import Standing, by_arrival, standing_of
from pipeline.messages import DeviceReady, GenerateRequest, SamplingParams, Terms

S = 1_000_000_000
NEVER = 1 << 62


def request(
    request_id: int, prompt: int, max_tokens: int = 64, patience_ms: float | None = None
) -> GenerateRequest:
    terms = Terms(patience_ms=patience_ms)
    sampling = SamplingParams(max_tokens=max_tokens)
    return GenerateRequest(request_id, [1] * prompt, None, sampling, 0, 0, terms)


@dataclass
class Waiting:
    request: GenerateRequest
    arrived_ns: int
    service_ns: int
    predicted_ns: float | None


class Queue:
    """Slots that each serve one request for its service time, first come first served, in virtual time."""

    def __init__(self, num_slots: int, max_wait_ns: int) -> None:
        self.gate = Gate()
        self.gate.open(DeviceReady(num_slots * 16, 16, num_slots, 4096), max_wait_ns)
        self.num_slots = num_slots
        self.now_ns = 1
        self.waiting: deque[Waiting] = deque()
        self.ends: list[tuple[int, int]] = []
        self.waits: list[tuple[int, float | None]] = []
        """What each waited, and what was predicted."""
        self.num_refused = self.num_served = 0
        self.retry_after_s: list[int | None] = []
        self.next_id = 0

    def arrive(self, service_ns: int) -> None:
        asked = request(self.next_id, 16)
        self.next_id += 1
        if refusal := self.gate.refusal(asked):
            self.num_refused += 1
            self.retry_after_s.append(refusal.retry_after_s)
            return
        predicted_ns = self.gate._wait_of(self.gate._entry(asked))
        self.gate.enter(asked)
        self.gate.tokenized(asked.request_id, 16)
        self.waiting.append(Waiting(asked, self.now_ns, service_ns, predicted_ns))
        self.plan()

    def until(self, at_ns: int) -> None:
        while self.ends and self.ends[0][0] <= at_ns:
            self.now_ns, request_id = heapq.heappop(self.ends)
            self.gate.released(request_id, self.now_ns)
            self.gate.leave(request_id, 64)
            self.num_served += 1
            self.plan()
        self.now_ns = at_ns

    def plan(self) -> None:
        while self.waiting and len(self.ends) < self.num_slots:
            first = self.waiting.popleft()
            self.gate.started(first.request.request_id, self.now_ns)
            self.waits.append((self.now_ns - first.arrived_ns, first.predicted_ns))
            heapq.heappush(self.ends, (self.now_ns + first.service_ns, first.request.request_id))
        num_free = self.num_slots - len(self.ends)
        self.gate.planned(num_free, num_free * 16, self.now_ns)


def overload(queue: Queue, load: float, service_s: float, seconds: float, rng: random.Random) -> None:
    """Poisson arrivals at `load` times what the slots can serve."""
    rate = load * queue.num_slots / service_s
    end_ns = queue.now_ns + int(seconds * S)
    at_ns = queue.now_ns
    while at_ns < end_ns:
        at_ns += int(rng.expovariate(rate) * S)
        queue.until(at_ns)
        queue.arrive(int(rng.uniform(0.5, 1.5) * service_s * S))


@given(
    num_slots=st.integers(2, 64),
    service_s=st.floats(0.02, 20),
    load=st.floats(1.5, 4),
    seed=st.integers(0, 1 << 32),
)
@settings(max_examples=25, deadline=None)
def test_under_overload_waits_keep_the_promise_and_slots_stay_busy(
    num_slots: int, service_s: float, load: float, seed: int
) -> None:
    rng = random.Random(seed)
    max_wait_s = 3 * service_s / num_slots + service_s
    queue = Queue(num_slots, int(max_wait_s * S))
    overload(queue, load, service_s, 40 * service_s, rng)  # also serves those let in before rates are known
    warm, served, began_ns = len(queue.waits), queue.num_served, queue.now_ns
    overload(queue, load, service_s, 30 * service_s, rng)
    waits = sorted(wait_ns for wait_ns, _ in queue.waits[warm:])
    assert waits[int(0.95 * len(waits))] < 2.0 * max_wait_s * S
    capacity = num_slots / service_s * (queue.now_ns - began_ns) / S
    assert queue.num_served - served > 0.85 * capacity
    assert queue.num_refused


@given(num_slots=st.integers(4, 64), service_s=st.floats(0.02, 20), seed=st.integers(0, 1 << 32))
@settings(max_examples=25, deadline=None)
def test_predictions_come_true(num_slots: int, service_s: float, seed: int) -> None:
    rng = random.Random(seed)
    queue = Queue(num_slots, int(4 * service_s * S))
    overload(queue, 2.0, service_s, 30 * service_s, rng)
    known = [(wait_ns, predicted) for wait_ns, predicted in queue.waits[len(queue.waits) // 2 :] if predicted]
    error = sum(abs(wait_ns - predicted) for wait_ns, predicted in known)
    assert error < 0.5 * sum(wait_ns for wait_ns, _ in known)
    assert all(after is not None and 1 <= after <= MAX_RETRY_AFTER_S for after in queue.retry_after_s)


@given(num_slots=st.integers(2, 64), load=st.floats(0.1, 0.6), seed=st.integers(0, 1 << 32))
@settings(max_examples=20, deadline=None)
def test_without_overload_nobody_is_refused(num_slots: int, load: float, seed: int) -> None:
    queue = Queue(num_slots, 4 * S)
    overload(queue, load, 1.0, 60.0, random.Random(seed))
    assert queue.num_refused <= queue.next_id * 0.02


def test_a_burst_after_a_quiet_time_is_not_judged_by_the_quiet_time() -> None:
    queue = Queue(8, 5 * S)
    for _ in range(20):  # one every ten seconds: the server did little because little came
        queue.until(queue.now_ns + 10 * S)
        queue.arrive(S)
    queue.until(queue.now_ns + 10 * S)
    for _ in range(24):  # three full batches: the last waits two seconds
        queue.arrive(S)
    assert queue.num_refused == 0


def test_slow_prompts_make_a_wait_although_there_is_room() -> None:
    gate = Gate()
    gate.open(DeviceReady(4096, 16, 64, 512), 2 * S)
    now_ns = S
    for request_id in range(10):
        gate.enter(request(request_id, 500))
        gate.tokenized(request_id, 500)
    gate.planned(64, 4096, now_ns)
    for request_id in range(4):  # 500 tokens a second
        now_ns += S
        gate.started(request_id, now_ns)
        gate.prefilled(500)
        gate.planned(63 - request_id, 4000, now_ns)
    refusal = gate.refusal(request(100, 500))
    assert refusal is not None and refusal.status == 429 and refusal.code == "queue_wait"
    assert refusal.retry_after_s == 6  # six of 500 are queued
    assert "would wait about 6.0 s" in refusal.message and "may wait 2.0 s" in refusal.message


def test_a_slow_time_is_not_held_against_those_who_come_to_an_idle_device() -> None:
    gate = Gate()
    gate.open(DeviceReady(4096, 16, 64, 512), 2 * S)
    gate.enter(request(0, 500))
    gate.planned(64, 4096, S)
    gate.prefilled(1)  # something held the prompts up for a minute
    gate.planned(64, 4096, 61 * S)
    assert gate.refusal(request(1, 500)) is not None
    gate.started(0, 62 * S)
    gate.planned(63, 4000, 62 * S)
    for request_id in range(1, 20):
        assert gate.refusal(request(request_id, 500)) is None
        gate.enter(request(request_id, 500))


def full_device(standing: Standing, terms: Terms) -> Gate:
    """Full, one slot a second comes free, and ten requests of these terms wait."""
    gate = Gate()
    gate.open(DeviceReady(64, 16, 4, 512), 3 * S, standing)
    for request_id in range(14):
        gate.enter(replace(request(request_id, 16), terms=terms))
        gate.tokenized(request_id, 16)
    for request_id in range(4):
        gate.started(request_id, S)
    gate.planned(0, 0, S)
    for second in range(2, 10):
        gate.enter(request(100 + second, 16))
        gate.started(100 + second, (second - 1) * S)
        gate.released(100 + second, second * S)
        gate.planned(0, 0, second * S)
    return gate


def test_who_is_served_first_is_let_in_behind_any_queue() -> None:
    flood = Terms(tenant="heavy", priority=1)
    light, high = Terms(tenant="light"), Terms(tenant="heavy", priority=2)
    by_fair_share = standing_of("fair", {})
    for standing, terms, is_let_in in (
        (by_arrival, light, False),
        (by_arrival, high, False),
        (by_fair_share, light, True),
        (by_fair_share, high, False),
        (standing_of("priority", {}), light, False),
        (standing_of("priority", {}), high, True),
    ):
        gate = full_device(standing, flood)
        refusal = gate.refusal(replace(request(1000, 16), terms=terms))
        assert (refusal is None) == is_let_in


@pytest.mark.parametrize(
    ("patience_ms", "max_wait_ns", "allowed_ns"),
    [(None, None, None), (None, 7, 7), (4000, None, 2 * S), (4000, 1 * S, 1 * S), (4000, 3 * S, 2 * S)],
)
def test_the_wait_allowed(patience_ms: float | None, max_wait_ns: int | None, allowed_ns: int | None) -> None:
    assert allowed_wait_ns(Terms(patience_ms=patience_ms), max_wait_ns) == allowed_ns


def test_without_a_promise_or_before_the_device_is_ready_everybody_comes_in() -> None:
    gate = Gate()
    for request_id in range(1000):
        assert gate.refusal(request(request_id, 500, patience_ms=1)) is None
        gate.enter(request(request_id, 500))
    assert gate.retry_after_s() is None
    assert set(gate.gauges()) == {"gate_queued_prefill_tokens"}


def test_what_is_shown() -> None:
    queue = Queue(4, 2 * S)
    overload(queue, 2.0, 1.0, 60.0, random.Random(1))
    shown = queue.gate.gauges()
    assert 3 < shown["gate_service_requests_per_second"] < 5
    assert 6 < shown["gate_queue_bound_requests"] < 10
    assert 0 <= shown["gate_predicted_wait_seconds"] < 4
    assert queue.gate.retry_after_s() in (1, 2, 3, 4)


class Sums(RuleBasedStateMachine):
    """Requests enter, are tokenized, start and leave in any order: the sums are those of who is queued."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.gate.open(DeviceReady(64, 16, 8, 512), None)
        self.queued: dict[int, int] = {}
        self.inside: set[int] = set()
        self.next_id = 0

    @rule(
        prompt=st.integers(1, 900),
        text=st.booleans(),
        max_tokens=st.sampled_from([1, 100]),
        tenant=st.sampled_from("ab"),
    )
    def enter(self, prompt: int, text: bool, max_tokens: int, tenant: str) -> None:
        asked = replace(request(self.next_id, prompt, max_tokens), terms=Terms(tenant=tenant))
        if text:
            asked = replace(asked, prompt="x" * prompt)
        self.gate.enter(asked)
        self.queued[self.next_id] = self.gate._entries[self.next_id].num_prompt_tokens
        self.inside.add(self.next_id)
        self.next_id += 1

    @rule(data=st.data(), num_tokens=st.integers(1, 900))
    def tokenized(self, data: st.DataObject, num_tokens: int) -> None:
        if self.queued:
            request_id = data.draw(st.sampled_from(sorted(self.queued)))
            self.gate.tokenized(request_id, num_tokens)
            self.queued[request_id] = num_tokens

    @rule(data=st.data())
    def started(self, data: st.DataObject) -> None:
        if self.inside:
            request_id = data.draw(st.sampled_from(sorted(self.inside)))
            self.gate.started(request_id, 1)
            self.queued.pop(request_id, None)

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.next_id:
            request_id = data.draw(st.integers(0, self.next_id - 1))
            self.gate.released(request_id, 5)
            self.gate.leave(request_id, 3)
            self.queued.pop(request_id, None)
            self.inside.discard(request_id)

    @invariant()
    def sums_are_exact(self) -> None:
        assert sum(self.gate._queued_tokens.values()) == sum(self.queued.values())
        shares = sum(self.gate._entries[request_id].share for request_id in self.queued)
        assert sum(self.gate._queued_shares.values()) == pytest.approx(shares, abs=1e-9)
        claims = {self.gate._entries[request_id].claim for request_id in self.queued}
        assert set(self.gate._queued_shares) == set(self.gate._queued_tokens) == claims
        assert set(self.gate._entries) == self.inside


TestSums = Sums.TestCase
TestSums.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
