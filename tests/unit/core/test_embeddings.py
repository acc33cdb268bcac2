"""Embeddings in the scheduler: planned with generation, ended once, and computed whole where they must be."""

from collections.abc import Iterator

import pytest

from pipeline.core.gate import Gate
from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.prefix import PrefixHash
from pipeline.core.prefix_cache import PrefixCache
from pipeline.core.scheduling import Scheduler
from pipeline.messages import (
    NO_TOKEN,
    DeviceReady,
    FinishReason,
    GenerateRequest,
    Pooling,
    SamplingParams,
    Terms,
    TokenBatch,
    TokenizedRequest,
)
from pipeline.runtime.testing import CheckingRunner, fake_embedding
from tests.scheduler_world import EOS, sampled

DEVICE = DeviceReady(num_blocks=40, block_size=4, max_num_seqs=8, max_num_batched_tokens=16)
BOTH = pytest.mark.parametrize("pooling", ["last", "mean"])


def request(
    request_id: int, num_tokens: int, pooling: Pooling = "", max_tokens: int = 1, salt: int = 5
) -> TokenizedRequest:
    sampling = SamplingParams(max_tokens=max_tokens)
    prompt = [salt] * num_tokens
    return TokenizedRequest(request_id, prompt, sampling, 0, 0, (0, 0, 0), Terms(), pooling)


class Bench:
    def __init__(self, device: DeviceReady = DEVICE, **options: object) -> None:
        policies = make_policies(SchedulingOptions(**options), device)
        prefixes = PrefixCache(PrefixHash(device.block_size, "m", b"k" * 32))
        self.core = Scheduler(device, (EOS,), policies, prefixes=prefixes)
        self.runner = CheckingRunner(device)
        self.computed: dict[int, int] = {}
        """Tokens by request id."""
        self.told: list[TokenBatch] = []

    def step(self) -> bool:
        plan = self.core.plan(1)
        if plan is None:
            return False
        self.runner.launch(plan)
        for request_id, count in zip(plan.request_ids, plan.num_tokens, strict=True):
            self.computed[request_id] = self.computed.get(request_id, 0) + count
        self.core.apply(sampled(plan, 2), 3)
        batch = self.core.take_tokens(4)
        if batch is not None:
            self.told.append(batch)
        return True

    def run(self, *requests: TokenizedRequest) -> None:
        for each in requests:
            assert self.core.add(each) is None
        while self.step():
            pass
        if (batch := self.core.take_tokens(5)) is not None:
            self.told.append(batch)
        assert self.core.is_idle and self.core.pool.num_free == self.core.pool.num_blocks

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Request, token and ending of each row."""
        for batch in self.told:
            yield from zip(batch.request_ids, batch.token_ids, batch.finish_reasons, strict=True)

    @property
    def embeddings(self) -> dict[int, bytes]:
        return {each: value for batch in self.told for each, value in batch.embeddings.items()}


@BOTH
def test_one_terminal_row_without_a_token(pooling: Pooling) -> None:
    bench = Bench()
    bench.run(request(1, 43, pooling), request(2, 5, max_tokens=6, salt=8), request(3, 1, pooling))
    ends = [row for row in bench.rows() if row[0] != 2]
    assert sorted(ends) == [(1, NO_TOKEN, FinishReason.STOP), (3, NO_TOKEN, FinishReason.STOP)]
    assert bench.embeddings == {1: fake_embedding(43), 3: fake_embedding(1)}
    assert len([row for row in bench.rows() if row[0] == 2]) == 6
    assert bench.computed == {1: 43, 2: 10, 3: 1}


def test_the_mean_is_computed_whole_and_leaves_its_prefix_to_others() -> None:
    bench = Bench()
    bench.run(request(1, 12, max_tokens=2))
    bench.run(request(2, 12, "mean"))
    bench.run(request(3, 12, "last"))
    assert bench.computed[2] == 12
    assert bench.computed[3] == 4  # never the last token: so its state is there
    other = Bench()
    other.run(request(1, 12, "mean"))
    other.run(request(2, 12, "last"))
    assert other.computed == {1: 12, 2: 4}


@BOTH
def test_a_preempted_one_is_computed_anew(pooling: Pooling) -> None:
    bench = Bench(DeviceReady(num_blocks=8, block_size=4, max_num_seqs=8, max_num_batched_tokens=4))
    bench.run(request(1, 12, max_tokens=12, salt=3), request(2, 16, pooling, salt=4))
    assert bench.embeddings == {2: fake_embedding(16)}


@BOTH
def test_a_cancelled_one_owes_no_embedding(pooling: Pooling) -> None:
    bench = Bench()
    assert bench.core.add(request(1, 43, pooling)) is None
    bench.step()
    bench.core.cancel(1, FinishReason.CANCELLED)
    bench.run()
    assert list(bench.rows()) == [(1, NO_TOKEN, FinishReason.CANCELLED)] and not bench.embeddings


@BOTH
def test_a_lost_device_costs_a_second_run(pooling: Pooling) -> None:
    bench = Bench()
    assert bench.core.add(request(1, 43, pooling)) is None
    bench.step()
    bench.core.device_lost()
    assert not bench.core.device_ready(DEVICE)
    bench.runner = CheckingRunner(DEVICE)
    bench.run()
    assert bench.embeddings == {1: fake_embedding(43)} and bench.computed[1] > 43


def test_a_prompt_as_long_as_the_cache_fits() -> None:
    bench = Bench()
    bench.run(request(1, 160, "mean"))
    assert bench.embeddings == {1: fake_embedding(160)}
    refused = bench.core.add(request(2, 161, "mean"))
    assert refused is not None and (refused.param, refused.code) == ("input", "kv_capacity_exceeded")


@BOTH
def test_the_door_learns_of_answers_from_text_only(pooling: Pooling) -> None:
    gate = Gate()
    gate.open(DEVICE, None)
    expected = gate._output_tokens
    asked = GenerateRequest(1, [5] * 9, None, SamplingParams(max_tokens=1), 0, 0, pooling=pooling)
    gate.enter(asked)
    gate.tokenized(1, 9)
    gate.started(1, 1)
    gate.leave(1, 0)
    assert gate._output_tokens == expected
