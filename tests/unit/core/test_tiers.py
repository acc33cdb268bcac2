"""Host memory and disk behind the prefix cache: what goes where, when, and how much of it at once."""

from typing import Any

import pytest
from msgspec.structs import replace

from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.prefix import PrefixHash
from pipeline.core.prefix_cache import PrefixCache
from pipeline.core.scheduling import Scheduler
from pipeline.core.shelves import MAX_WAIT_NS, Shelves
from pipeline.core.tiers import MAX_SAVE_NS, Tiers
from pipeline.messages import DeviceReady, DiskMoved, DiskMoves, DiskReady, FinishReason, Shelved
from tests.scheduler_world import EOS, MS, World
from tests.unit.core.test_prefix_cache import BLOCK, asking

SECRET = b"s" * 32
TEXT = list(range(10, 30))
OTHER = list(range(40, 72))
HOST = DeviceReady(8, BLOCK, 4, 64, num_host_blocks=20, block_copy_ns=1000)
DISK = replace(HOST, num_host_blocks=8, disk=DiskReady(50, keeps=True))


def world(device: DeviceReady, hashing: type[PrefixHash] = PrefixHash) -> World:
    policies = make_policies(SchedulingOptions(), device)
    assert policies.cost is not None
    tiers = Tiers(device, policies.host, policies.cost)
    return World(
        Scheduler(device, (EOS,), policies, prefixes=PrefixCache(hashing(BLOCK, "m", SECRET), tiers=tiers))
    )


def cache(w: World) -> PrefixCache:
    prefixes = w.core.residents.prefixes
    assert isinstance(prefixes, PrefixCache)
    return prefixes


def ask(w: World, request_id: int, token_ids: list[int], max_tokens: int = 1, **terms: Any) -> int:
    """Run it to its end; how many of its tokens were cached."""
    w.add(asking(request_id, token_ids, max_tokens, **terms))
    sequence = w.core._live[request_id]
    w.run()
    return sequence.num_cached_tokens


def answer(w: World, *, good: bool = True, fault: str = "") -> DiskMoves | None:
    """The disk does what it was asked for."""
    moves = cache(w).take_moves()
    if moves is not None:
        ids = [move.move_id for move in moves.moves]
        cache(w).moved(DiskMoved(ids, [good] * len(ids), 1000 * len(ids), fault))
    return moves


def test_what_is_pushed_out_comes_back_from_host_memory() -> None:
    w = world(HOST)
    assert ask(w, 0, TEXT) == 0 and ask(w, 1, OTHER) == 0
    assert cache(w).find(w.core._live[2] if 2 in w.core._live else made(w, 2)) == []
    assert ask(w, 3, TEXT) == 16
    plan = next(plan for plan in w.plans if plan.loaded_ids)
    assert len(plan.loaded_ids) == 4 and plan.num_computed == [16]
    assert w.core.policies.host.pool.num_owned == 0


def made(w: World, request_id: int) -> Any:
    w.add(asking(request_id, TEXT, 1))
    sequence = w.core._live[request_id]
    w.core.cancel(request_id, FinishReason.STOP)
    return sequence


def test_nobody_elses_comes_back() -> None:
    w = world(HOST)
    ask(w, 0, TEXT, tenant="a")
    ask(w, 1, OTHER)
    assert ask(w, 2, TEXT, tenant="b") == ask(w, 3, TEXT) == ask(w, 4, TEXT, tenant="a", cache_salt="s") == 0


def test_a_plan_saves_for_a_millisecond_or_a_tenth_of_its_step() -> None:
    slow = replace(HOST, num_blocks=16, block_copy_ns=MAX_SAVE_NS // 2)
    w = world(slow)
    for request_id in range(6):
        ask(w, request_id, [request_id * 100 + k for k in range(33)], max_tokens=20)
    assert 0 < max(len(plan.saved_ids) for plan in w.plans) <= 2
    assert cache(w).tiers.num_dropped > 0


def test_where_computing_is_quicker_nothing_is_copied() -> None:
    w = world(replace(HOST, block_copy_ns=10**9))
    cost = w.core.policies.cost
    assert cost is not None
    for count in range(1, 20):
        cost.observe(count, 0, count, count * 1000)
    ask(w, 0, TEXT)
    ask(w, 1, OTHER)
    assert ask(w, 2, TEXT) == 0 and not any(plan.saved_ids or plan.loaded_ids for plan in w.plans)


def on_disk_alone(device: DeviceReady = DISK) -> World:
    """TEXT has been on the device and in host memory, and is only on disk."""
    w = world(device)
    ask(w, 0, TEXT, max_tokens=3)
    answer(w)
    for request_id in range(1, 7):
        ask(w, request_id, [request_id * 100 + k for k in range(28)], max_tokens=3)
        answer(w)
    away = [entry for entry in cache(w)._entries.values() if entry.link.tokens[0] in range(10, 30)]
    assert len(away) >= 4 and all(entry.block < 0 and entry.place < 0 <= entry.shelf for entry in away)
    return w


def test_a_new_request_waits_for_what_comes_from_disk() -> None:
    w = on_disk_alone()
    w.add(asking(9, TEXT, 1))
    sequence = w.core._live[9]
    assert sequence.is_fetching and w.core.plan(w.now_ns) is None and w.core.num_waiting == 1
    moves = answer(w)
    assert moves is not None and [move.is_fetch for move in moves.moves] == [True] * 4
    w.run()
    assert sequence.num_cached_tokens == 16
    assert cache(w).gauges()["prefix_disk_hit_tokens_total"] == 16


def test_but_not_for_longer_than_computing_would_take() -> None:
    w = on_disk_alone()
    w.add(asking(9, TEXT, 1))
    wake_ns = w.core.wake_ns
    assert wake_ns is not None and wake_ns <= MAX_WAIT_NS
    assert w.core.plan(wake_ns - 1) is None
    plan = w.core.plan(wake_ns)
    assert plan is not None and plan.num_tokens == [20]


@pytest.mark.parametrize("fault", ["", "it is full"])
def test_what_is_not_as_it_was_is_computed(fault: str) -> None:
    w = on_disk_alone()
    w.add(asking(9, TEXT, 1))
    sequence = w.core._live[9]
    answer(w, good=False, fault=fault)
    w.run()
    assert sequence.num_cached_tokens == 0
    gauges = cache(w).gauges()
    assert gauges["disk_corrupt_blocks_total"] == (0 if fault else 4)
    assert gauges["disk_disabled"] == bool(fault)
    assert (gauges["disk_blocks_cached"] == 0) == bool(fault)
    w.add(asking(10, TEXT, 1))
    assert not w.core._live[10].is_fetching


def test_who_is_cancelled_while_he_waits_is_gone() -> None:
    w = on_disk_alone()
    w.add(asking(9, TEXT, 1))
    w.core.cancel(9, FinishReason.CANCELLED)
    w.core.take_tokens(w.now_ns)
    assert w.core.is_idle
    answer(w)
    assert w.core.plan(w.now_ns) is None and w.core.policies.host.pool.num_owned == 0


def test_a_paused_one_waits_for_both() -> None:
    w = on_disk_alone()
    w.add(asking(9, TEXT, 1))
    w.core.pause(9, is_paused=True)
    w.core.pause(9, is_paused=False)
    assert w.core.plan(w.now_ns) is None
    w.core.pause(9, is_paused=True)
    answer(w)
    assert w.core.plan(w.now_ns + MS) is None
    w.core.pause(9, is_paused=False)
    assert w.core.plan(w.now_ns + MS) is not None


def test_what_an_earlier_process_left_is_found_and_only_that() -> None:
    hashing = PrefixHash(BLOCK, "m", SECRET)
    links = [hashing.first("", "", TEXT[:4])]
    links += [hashing.after(links[-1], TEXT[4:8])]
    links += [hashing.after(links[-1], TEXT[8:12])]
    kept = [Shelved(k, k == 0, *link) for k, link in enumerate(links)]
    for names, cached in (
        (kept, 12),
        (kept[::-1], 12),
        (kept[:2], 8),
        (kept[1:], 0),
        ([kept[0], kept[2]], 4),
    ):
        w = world(replace(DISK, disk=DiskReady(10, True, SECRET, tuple(names))))
        w.add(asking(0, TEXT, 1))
        sequence = w.core._live[0]
        answer(w)
        w.run()
        assert sequence.num_cached_tokens == cached


def test_of_two_shelves_with_the_same_the_later_counts() -> None:
    link = PrefixHash(BLOCK, "m", SECRET).first("", "", TEXT[:4])
    device = replace(
        DISK, disk=DiskReady(4, True, SECRET, (Shelved(2, True, *link), Shelved(1, True, *link)))
    )
    shelves = Shelves(device, make_policies(SchedulingOptions(), device).host)
    (entry,) = shelves.restored()
    assert entry.shelf == 1 and shelves.pool.num_cached == 1 and shelves.pool.num_blank == 3


def test_a_swapped_sequence_pushes_out_prefixes_and_not_the_other_way_round() -> None:
    w = world(replace(HOST, num_blocks=6, num_host_blocks=4))
    ask(w, 0, TEXT)
    ask(w, 1, OTHER[:20])
    assert w.core.policies.host.pool.num_cached > 0
    w.add(asking(2, list(range(100, 108)), 12), asking(3, list(range(200, 208)), 12))
    while not w.core.num_preemptions:
        w.step()
    kept: dict[int, list[int]] = w.core.policies.eviction._kept  # type: ignore[attr-defined]
    assert kept and w.core.policies.host.pool.num_owned >= len(*kept.values())
    w.run()
    assert w.core.policies.eviction.gauges()["swaps_total"] == 1 and w.core.pool.num_owned == 0
