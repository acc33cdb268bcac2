"""The roofline against what can be worked out by hand."""

import pytest

from pipeline.core.policies import SchedulingOptions
from pipeline.errors import ConfigError
from pipeline.gpu.memory.sizing import AUTO_FRACTION
from pipeline.messages import SamplingParams, TokenizedRequest
from pipeline.simulate import roofline
from pipeline.simulate.devices import DEVICES
from pipeline.simulate.models import MODELS, kv_bytes, weight_bytes
from pipeline.simulate.roofline import Roofline, capacity
from pipeline.simulate.schedulers import make_scheduler
from pipeline.simulate.work import StepWork, work_of

H100, LLAMA = DEVICES["h100"], MODELS["llama-3-8b"]
LIMITS = {"block_size": 16, "max_num_seqs": 256, "max_num_batched_tokens": 2048}


def test_the_published_sizes_of_models() -> None:
    assert weight_bytes(LLAMA, "bfloat16") / 2e9 == pytest.approx(8.03, rel=0.002)
    assert weight_bytes(MODELS["llama-3-70b"], "bfloat16") / 2e9 == pytest.approx(70.55, rel=0.002)
    assert weight_bytes(MODELS["qwen-2.5-7b"], "bfloat16") / 2e9 == pytest.approx(7.61, rel=0.002)
    assert weight_bytes(MODELS["smollm2-135m"], "float32") / 4e6 == pytest.approx(134.5, rel=0.002)
    assert kv_bytes(LLAMA, "bfloat16") == 131_072


def test_one_row_is_bound_by_reading_the_weights() -> None:
    step_ns = Roofline(H100, LLAMA, "bfloat16", 1).step_ns(StepWork(1, 1, 1, 100, 100))
    read_ns = weight_bytes(LLAMA, "bfloat16") / (H100.bandwidth * H100.memory_efficiency) * 1e9
    assert read_ns < step_ns < 1.15 * read_ns


def test_a_long_prefill_is_bound_by_arithmetic() -> None:
    work = StepWork(2048, 1, 1, 2048, 2048 * 2049 // 2)
    step_ns = Roofline(H100, LLAMA, "bfloat16", 1).step_ns(work)
    compute_ns = 2 * 2048 * 6.98e9 / (H100.flops["bfloat16"] * H100.compute_efficiency) * 1e9
    assert compute_ns < step_ns < 1.15 * compute_ns


def test_decode_ns_is_step_ns() -> None:
    cost = Roofline(H100, LLAMA, "bfloat16", 1)
    for num_rows in (1, 7, 300, 900):
        base_ns, kv_ns = cost.decode_ns(num_rows)
        assert cost.step_ns(StepWork(num_rows, num_rows, num_rows, 5000, 5000)) == int(base_ns + kv_ns * 5000)


def test_more_gpus_are_faster_but_not_so_many_times() -> None:
    work = StepWork(256, 256, 256, 200_000, 200_000)
    one, four = (Roofline(H100, LLAMA, "bfloat16", count).step_ns(work) for count in (1, 4))
    assert one / 4 < four < one / 1.5


def test_weights_that_do_not_fit_are_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"141\.1 GB of weights do not fit 1 x h100 .*--gpus"):
        capacity(H100, MODELS["llama-3-70b"], "bfloat16", 1, **LIMITS)
    assert capacity(H100, MODELS["llama-3-70b"], "bfloat16", 4, **LIMITS).num_blocks > 10_000


def test_the_work_of_a_plan_counts_every_pair_of_tokens() -> None:
    ready = capacity(H100, LLAMA, "bfloat16", 1, block_size=16, max_num_seqs=8, max_num_batched_tokens=10)
    scheduler = make_scheduler(SchedulingOptions(), ready)
    for request_id, size in enumerate((4, 13)):
        sampling = SamplingParams(max_tokens=3)
        scheduler.add(TokenizedRequest(request_id, [1] * size, sampling, 0, 0, (0, 0, 0)))
    first, second = scheduler.plan(0), scheduler.plan(0)
    assert first is not None and second is not None
    assert work_of(first) == StepWork(10, 2, 1, 4 + 6, sum(range(1, 5)) + sum(range(1, 7)))
    assert work_of(second) == StepWork(1 + 7, 2, 2, 5 + 13, 5 + sum(range(7, 14)))


def test_the_kv_cache_takes_of_the_memory_what_the_server_would() -> None:
    assert AUTO_FRACTION["cuda"] == roofline.KV_FRACTION
