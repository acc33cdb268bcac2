"""What is shared, with whom, and what is not."""

from typing import Any

import pytest

from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.prefix import PrefixHash
from pipeline.core.prefix_cache import PrefixCache
from pipeline.core.roles import SEPARATIONS
from pipeline.core.scheduling import Scheduler
from pipeline.messages import DeviceReady, FinishReason, SamplingParams, StepPlan, Terms, TokenizedRequest
from tests.scheduler_world import EOS, World, sampled

BLOCK = 4
DEVICE = DeviceReady(num_blocks=40, block_size=BLOCK, max_num_seqs=8, max_num_batched_tokens=64)


def world(device: DeviceReady = DEVICE, hashing: type[PrefixHash] = PrefixHash, **options: Any) -> World:
    policies = make_policies(SchedulingOptions(**options), device)
    cache = PrefixCache(hashing(device.block_size, "m", b"s" * 32))
    return World(Scheduler(device, (EOS,), policies, prefixes=cache))


def asking(request_id: int, token_ids: list[int], max_tokens: int = 4, **terms: Any) -> TokenizedRequest:
    sampling = SamplingParams(max_tokens=max_tokens)
    return TokenizedRequest(request_id, list(token_ids), sampling, request_id, 0, (0, 0, 0), Terms(**terms))


def ask(w: World, request_id: int, token_ids: list[int], **rest: Any) -> int:
    """Run it to its end; how many of its tokens were cached."""
    w.add(asking(request_id, token_ids, **rest))
    sequence = w.core._live[request_id]
    w.run()
    assert w.core.pool.num_free == w.core.pool.num_blocks
    return sequence.num_cached_tokens


def num_computed(plans: list[StepPlan]) -> int:
    return sum(len(plan.token_ids) for plan in plans)


TEXT = list(range(10, 26))


@pytest.mark.parametrize(("size", "cached"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (16, 12)])
def test_full_blocks_but_never_the_last_token(size: int, cached: int) -> None:
    w = world()
    assert ask(w, 0, TEXT[:size]) == 0
    assert ask(w, 1, TEXT[:size]) == cached == BLOCK * ((size - 1) // BLOCK)


def test_up_to_where_they_part() -> None:
    w = world()
    ask(w, 0, TEXT)
    assert ask(w, 1, [*TEXT[:10], 99, *TEXT[11:]]) == 8
    assert ask(w, 2, [99, *TEXT[1:]]) == 0


def test_what_is_cached_is_not_computed() -> None:
    w = world()
    ask(w, 0, TEXT, max_tokens=1)
    before = num_computed(w.plans)
    ask(w, 1, TEXT, max_tokens=1)
    assert (before, num_computed(w.plans) - before) == (16, 4)


def test_an_answer_is_cached_for_the_next_turn() -> None:
    w = world()
    ask(w, 0, TEXT[:6], max_tokens=7)  # 6 + 7 tokens; the last one is never fed back
    assert ask(w, 1, [*TEXT[:6], *[7] * 7, 50]) == 12


def test_two_that_come_together_compute_once() -> None:
    w = world()
    w.add(asking(0, TEXT, 1), asking(1, TEXT, 1), asking(2, TEXT, 1))
    w.run()
    assert len(w.plans) == 1 and w.plans[0].num_tokens == [16, 4, 4]
    assert w.core.pool.num_cached == 4


def test_the_first_may_leave_before_its_step_has_run() -> None:
    w = world()
    w.add(asking(0, TEXT, 5))
    first = w.core.plan(1)
    assert first is not None
    w.core.cancel(0, FinishReason.CANCELLED)
    w.add(asking(1, TEXT, 1))
    second = w.core.plan(2)
    assert second is not None and second.num_computed == [12] and second.token_ids == TEXT[12:]
    assert second.block_ids[:3] == first.block_ids[:3]
    w.core.apply(sampled(first, 3), 3)
    w.core.apply(sampled(second, 4), 4)
    w.core.take_tokens(5)
    assert w.core.is_idle and w.core.pool.num_owned == 0


def test_a_chunked_prompt_is_shared_as_far_as_it_was_planned() -> None:
    w = world(DeviceReady(40, BLOCK, 8, max_num_batched_tokens=8))
    w.add(asking(0, TEXT, 1), asking(1, TEXT, 1))
    w.run()
    assert num_computed(w.plans) == 16 + 4


def test_nobody_shares_across_tenants_salts_or_models() -> None:
    w = world()
    ask(w, 0, TEXT, tenant="a")
    assert ask(w, 1, TEXT, tenant="b") == ask(w, 2, TEXT) == ask(w, 3, TEXT, tenant="a", cache_salt="s") == 0
    assert ask(w, 4, TEXT, cache_salt="a") == ask(w, 5, TEXT, tenant="as", cache_salt="") == 0
    assert ask(w, 6, TEXT, tenant="a") == ask(w, 7, TEXT, tenant="a", cache_salt="s") == 12
    links = {PrefixHash(BLOCK, model, b"s" * 32).first("", "", TEXT[:4]).key for model in ("m", "n")}
    assert len(links) == 2


def test_fields_that_read_the_same_together_are_told_apart() -> None:
    hashing = PrefixHash(BLOCK, "m", b"s" * 32)
    pairs = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc")]
    keys = {hashing.first(tenant, salt, TEXT[:4]).key for tenant, salt in pairs}
    first = hashing.first("", "", TEXT[:4])
    keys |= {hashing.first("", "", TEXT[4:8]).key, hashing.after(first, TEXT[:4]).key}
    assert len(keys) == 6


def test_a_key_cannot_be_told_without_the_servers_secret() -> None:
    keys = {PrefixHash(BLOCK, "m", secret * 32).first("", "", TEXT[:4]).key for secret in (b"a", b"b")}
    assert len(keys) == 2


class OneKey(PrefixHash):
    def _hash(self, kind: bytes, data: bytes) -> bytes:
        return b"always"


def test_a_collision_is_a_miss() -> None:
    w = world(hashing=OneKey)
    assert ask(w, 0, TEXT[:8], tenant="a") == 0
    assert ask(w, 1, [9, *TEXT[1:8]], tenant="a") == 0, "other tokens"
    assert ask(w, 2, TEXT[:8], tenant="b") == 0, "another tenant"
    assert ask(w, 3, TEXT[:4] * 2, tenant="a") == 4, "the same tokens at another place"
    assert ask(w, 4, TEXT[:8], tenant="a") == 4


def test_behind_a_hole_nothing_is_found() -> None:
    w = world()
    ask(w, 0, TEXT)
    prefixes = w.core.residents.prefixes
    assert isinstance(prefixes, PrefixCache)
    first = next(iter(prefixes._on_device))
    prefixes.forget(first)
    w.core.pool._is_kept[first] = 0
    w.add(asking(1, TEXT))
    assert prefixes.find(w.core._live[1]) == []


def test_the_end_of_the_chain_that_was_held_longest_ago_goes_first() -> None:
    w = world(DeviceReady(num_blocks=8, block_size=BLOCK, max_num_seqs=2, max_num_batched_tokens=64))
    old, new = list(range(100, 112)), list(range(200, 212))
    ask(w, 0, old, max_tokens=1)
    ask(w, 1, new, max_tokens=1)
    ask(w, 2, list(range(300, 316)), max_tokens=1)  # two free blocks, and two of the old chain
    assert w.core.residents.prefixes.gauges()["prefix_evicted_blocks_total"] == 2
    w.add(asking(3, [*old, 1]), asking(4, [*new, 1]))
    find = w.core.residents.prefixes.find
    assert len(find(w.core._live[3])) == 1 and len(find(w.core._live[4])) == 3


def test_what_others_hold_need_not_be_free() -> None:
    w = world(DeviceReady(num_blocks=7, block_size=BLOCK, max_num_seqs=4, max_num_batched_tokens=64))
    w.add(asking(0, TEXT, 8))
    w.step()
    w.add(asking(1, TEXT, 2), asking(2, [*TEXT[:12], 1, 2, 3], 2))
    w.step()
    assert w.core.num_running == 3 and w.core.pool.num_owned == 7 and w.core.pool.num_saved == 6
    assert w.core.num_kv_tokens - w.core.residents.num_shared_tokens == 17 + 4 + 3
    w.run()
    assert w.core.is_idle


def test_a_victim_makes_room_by_what_it_alone_holds() -> None:
    device = DeviceReady(num_blocks=6, block_size=BLOCK, max_num_seqs=4, max_num_batched_tokens=64)
    w = world(device, policy="priority", max_bypasses=0)
    w.add(asking(0, TEXT[:10], 2), asking(1, [*TEXT[:9], 1], 2))
    w.step()
    assert w.core.pool.num_free == 2
    w.add(asking(2, list(range(50, 63)), 2, priority=9))  # four blocks: one of two victims frees just one
    w.step()
    assert w.core.num_outranked == 2
    w.run()
    assert w.core.is_idle


def test_a_preempted_one_finds_its_own_again() -> None:
    device = DeviceReady(num_blocks=6, block_size=BLOCK, max_num_seqs=4, max_num_batched_tokens=64)
    with_cache, without = (
        world(device),
        World(Scheduler(device, (EOS,), make_policies(SchedulingOptions(), device))),
    )
    for w in (with_cache, without):
        w.add(asking(0, TEXT[:7], 13), asking(1, list(range(50, 57)), 13))
        w.run()
        assert w.core.num_preemptions > 0
    assert num_computed(with_cache.plans) < num_computed(without.plans)


def test_of_a_decode_worker_only_what_is_applied_is_shared() -> None:
    """Its step may run after the one that would read: only one worker's steps have an order."""
    policies = make_policies(SchedulingOptions(), DEVICE)
    cache = PrefixCache(PrefixHash(BLOCK, "m", b"s" * 32))
    core = Scheduler(DEVICE, (EOS,), policies, SEPARATIONS["split"], cache)
    core.add(asking(0, TEXT[:6], 20))
    prefill = core.plan(1, 0)
    assert prefill is not None
    core.apply(sampled(prefill, 2), 2)  # 7 tokens, 6 of them computed
    decode = [core.plan(3, 1), core.plan(3, 1)]  # the second one writes the last token of the second block
    assert decode[0] is not None and decode[1] is not None
    core.apply(sampled(decode[0], 4), 4)
    third = core.plan(5, 1)  # takes a third block: the second is full by plan
    assert third is not None and len(third.block_ids) == 1
    core.add(asking(1, [*TEXT[:6], 7, 7, 1], 1))
    waiting = core._live[1]
    assert len(cache.find(waiting)) == 1
    core.apply(sampled(decode[1], 6), 6)
    core.apply(sampled(third, 7), 7)
    core.cancel(0, FinishReason.CANCELLED)
    assert len(cache.find(waiting)) == 2


def test_the_counters_count_a_prompt_once() -> None:
    w = world()
    for k in range(3):
        ask(w, k, TEXT[:10])
    gauges = w.core.residents.prefixes.gauges()
    assert (gauges["prefix_queried_tokens_total"], gauges["prefix_hit_tokens_total"]) == (30, 16)
