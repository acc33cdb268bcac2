"""Recorded traffic: the cache finds what the trace says that prompts have in common."""

from pathlib import Path

import pytest

from loadgen.prefixes import Prefixes, TokenRange
from loadgen.traces import load
from loadgen.traces.row import Blocks
from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.prefix import PrefixHash
from pipeline.core.prefix_cache import PrefixCache
from pipeline.core.scheduling import Scheduler
from pipeline.messages import DeviceReady, SamplingParams, TokenizedRequest
from tests.scheduler_world import World

TRACES = Path(__file__).parents[4] / "shared" / "data" / "traces"
NAMES = ["mooncake_fast25_conversation_first1000s.jsonl", "mooncake_fast25_synthetic_first850s.jsonl"]
NUM_ROWS = 200


@pytest.mark.parametrize("name", NAMES)
def test_hits_are_those_of_the_trace(name: str) -> None:
    if not (TRACES / name).exists():
        pytest.skip(f"{name} is not in ../shared/data/traces")
    device = DeviceReady(num_blocks=400_000, block_size=16, max_num_seqs=8, max_num_batched_tokens=200_000)
    cache = PrefixCache(PrefixHash(16, "m", b"s" * 32))
    world = World(Scheduler(device, (), make_policies(SchedulingOptions(), device), prefixes=cache))
    prefixes, seen, num_possible = Prefixes(0, TokenRange()), set[int](), 0
    for index, row in enumerate(load(TRACES / name).rows[:NUM_ROWS]):
        assert isinstance(row.content, Blocks) and row.num_input is not None
        token_ids = prefixes.prompt(row.content, row.num_input, index)
        world.add(TokenizedRequest(index, token_ids, SamplingParams(max_tokens=1), 0, 0, (0, 0, 0)))
        world.run()
        is_known = True
        for hash_id, size in row.content.spans(row.num_input):
            is_known = is_known and hash_id in seen
            num_possible += size if is_known else 0
            seen.add(hash_id)
    assert cache.num_forgotten == 0 < num_possible
    assert 0 <= num_possible - cache.num_hit_tokens <= 16 * NUM_ROWS, "but for one block a prompt"
