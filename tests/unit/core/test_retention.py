"""What is kept of a context: budgets in blocks, who is seen, who may go."""

import pytest

from pipeline.core.gate import Gate
from pipeline.core.retention import KEEP_ALL, HeavyHitter, Retention, Retentions, SinkWindow
from pipeline.errors import ConfigError, RequestError
from pipeline.messages import DeviceReady, GenerateRequest, SamplingParams, Terms

DEVICE = DeviceReady(num_blocks=100, block_size=4, max_num_seqs=8, max_num_batched_tokens=20)


def retentions(
    kind: str = "none", budget: int = 40, sinks: int = 4, device: DeviceReady = DEVICE
) -> Retentions:
    return Retentions(device, kind, budget, sinks)  # type: ignore[arg-type]


def of(num_tokens: int = 1000, *, device: DeviceReady = DEVICE, **terms: object) -> Retention:
    return retentions(device=device).of(Terms(**terms), num_tokens)  # type: ignore[arg-type]


def test_sinks_and_budget_are_whole_blocks() -> None:
    kept = of(kv_eviction="sink_window", kv_budget=29, kv_sinks=5)
    assert kept == SinkWindow(block_size=4, num_sinks=8, window=24, max_blocks=8 + 5)
    assert of(kv_eviction="sink_window", kv_sinks=0) == SinkWindow(4, 0, 40, 15)
    assert of(kv_eviction="heavy_hitter") == HeavyHitter(block_size=4, num_sinks=4, budget=40, max_blocks=15)


@pytest.mark.parametrize(
    ("num_tokens", "device", "expected"),
    [
        (1000, DEVICE, 10 + 5),  # a chunk is a step's tokens
        (1000, DeviceReady(100, 4, 8, 4096), 10 + 10),  # or the budget once more
        (1000, DeviceReady(12, 4, 8, 4096), 12),  # or what there is
        (43, DEVICE, 11),  # or what it comes to hold at all
    ],
)
def test_a_sequence_holds_its_budget_and_a_chunk(num_tokens: int, device: DeviceReady, expected: int) -> None:
    assert of(num_tokens, device=device, kv_eviction="sink_window").max_blocks == expected


def test_who_never_outgrows_the_budget_keeps_all() -> None:
    assert of(40, kv_eviction="sink_window") is KEEP_ALL
    assert of(41, kv_eviction="sink_window").drops
    assert of(1000) is KEEP_ALL


def test_a_request_may_choose_otherwise_than_the_server() -> None:
    server = retentions("heavy_hitter", 40)
    assert isinstance(server.of(Terms(), 1000), HeavyHitter)
    assert server.of(Terms(kv_eviction="none"), 1000) is KEEP_ALL
    assert isinstance(server.of(Terms(kv_eviction="sink_window"), 1000), SinkWindow)
    assert server.of(Terms(kv_budget=1000), 1000) is KEEP_ALL


@pytest.mark.parametrize(
    ("terms", "param"),
    [
        (Terms(kv_eviction="sink_window", kv_budget=11), None),
        (Terms(kv_eviction="sink_window", kv_budget=8), "kv_budget"),
        (Terms(kv_eviction="heavy_hitter", kv_budget=40, kv_sinks=33), "kv_budget"),
        (Terms(kv_eviction="heavy_hitter", kv_budget=397), "kv_budget"),
        (Terms(kv_eviction="heavy_hitter", kv_budget=396), None),
        (Terms(kv_budget=40), "kv_budget"),
        (Terms(kv_sinks=0), "kv_sinks"),
    ],
)
def test_a_budget_has_room_for_two_blocks_and_leaves_one(terms: Terms, param: str | None) -> None:
    if param is None:
        assert retentions().of(terms, 1000).drops
        return
    with pytest.raises(RequestError) as caught:
        retentions().of(terms, 1000)
    assert caught.value.param == param and caught.value.status == 400


def test_a_default_that_cannot_run_is_a_fault_of_the_config() -> None:
    retentions("sink_window").check()
    retentions("none", budget=4000).check()
    with pytest.raises(ConfigError, match=r"stages\.schedule\.options: 'kv_budget' must be at most 396"):
        retentions("sink_window", budget=4000).check()


@pytest.mark.parametrize("num_entries", range(80))
def test_no_query_misses_what_it_is_promised(num_entries: int) -> None:
    """Of entries e the query that comes next, the first 8 and the last 12 with itself."""
    kept = SinkWindow(block_size=4, num_sinks=8, window=12, max_blocks=9)
    seen = {*range(8), *range(num_entries + 1 - 12, num_entries + 1)}
    unseen = [col for col in range(num_entries // 4) if seen.isdisjoint(range(4 * col, 4 * col + 4))]
    assert list(kept.unseen(num_entries)) == unseen


@pytest.mark.parametrize("num_entries", range(80))
def test_what_may_go_is_neither_sinks_nor_recent_and_there_is_enough(num_entries: int) -> None:
    kept = HeavyHitter(block_size=4, num_sinks=8, budget=24, max_blocks=12)
    num, columns = kept.num_drops(num_entries), kept.candidates(num_entries)
    assert num_entries - 4 * num <= 24 < num_entries - 4 * (num - 1) if num else num_entries <= 24
    if num:
        assert len(columns) >= num and columns.start == 2 and 4 * columns.stop <= num_entries - 8


def test_the_gate_counts_what_they_hold() -> None:
    """Two thirds of a device that is small for the prompt, or a seventh with a window."""
    gate = Gate()
    gate.open(DEVICE, 1000, retentions=retentions())

    def share(**terms: object) -> float:
        request = GenerateRequest(
            1,
            [0] * 260,
            None,
            SamplingParams(max_tokens=4),
            0,
            0,
            Terms(**terms),  # type: ignore[arg-type]
        )
        return gate._entry(request).share

    assert share() == 0.66 and share(kv_eviction="sink_window") == 0.15
    assert share(kv_eviction="sink_window", kv_budget=1) == 0.66, "it will be refused"
