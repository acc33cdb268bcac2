"""Building a runner: what it says it can hold, and how it refuses what it cannot run."""

import itertools

import msgspec
import pytest
import torch

from pipeline.config import convert_options
from pipeline.errors import ConfigError, ModelError
from pipeline.gpu.kv.dtype import block_bytes
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import build_runner
from pipeline.messages import DeviceReady
from tests.gpu.driver import TINY, Driver, random_tensors

OPTIONS = RunnerOptions(device="cpu", num_blocks=20, max_num_seqs=4)


def test_capacity_is_what_was_asked_for() -> None:
    options = msgspec.structs.replace(OPTIONS, block_size=32, max_num_batched_tokens=100)
    ready = DeviceReady(20, 32, 4, 100, "cpu", block_bytes=block_bytes(TINY, 32, "bf16"))
    assert build_runner(TINY, random_tensors(TINY), options).capacity == ready


def test_blocks_are_sized_by_memory_and_bounded_by_use() -> None:
    by_memory = RunnerOptions(device="cpu", kv_memory=10 * block_bytes(TINY, 16, "bf16") + 1)
    assert build_runner(TINY, random_tensors(TINY), by_memory).capacity.num_blocks == 10
    automatic = RunnerOptions(device="cpu", max_num_seqs=3, max_model_len=100)
    assert build_runner(TINY, random_tensors(TINY), automatic).capacity.num_blocks == 3 * 7


def test_what_there_is_no_memory_for_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.gpu.memory.rehearsal.free_bytes", lambda device: 2**28)
    with pytest.raises(ConfigError, match=r"num_blocks = 1000000 asks for .* are free beside the weights"):
        build_runner(TINY, random_tensors(TINY), RunnerOptions(device="cpu", num_blocks=10**6))
    with pytest.raises(ConfigError, match=r'kv_memory = "999TB" is not a size'):
        build_runner(TINY, random_tensors(TINY), RunnerOptions(device="cpu", kv_memory="999TB"))
    many = RunnerOptions(device="cpu", kv_memory="999999GB", max_num_seqs=10**5)
    with pytest.raises(ConfigError, match=r'kv_memory = "999999GB" asks for .*the largest step needs'):
        build_runner(TINY, random_tensors(TINY), many)


@pytest.mark.parametrize(
    ("given", "is_fine"), [(0.5, True), (1.5, False), (0.0, False), (1, True), (0, False)]
)
def test_kv_memory_may_be_a_fraction(given: float, is_fine: bool) -> None:
    if is_fine:
        assert convert_options("test", "device", {"kv_memory": given}, RunnerOptions).kv_memory == given
        return
    with pytest.raises(ConfigError, match=r"device.kv_memory = "):
        convert_options("test", "device", {"kv_memory": given}, RunnerOptions)


def test_a_step_has_begin_and_end_of_the_given_clock() -> None:
    ticks = itertools.count(100)
    runner = build_runner(TINY, random_tensors(TINY), OPTIONS, clock=lambda: next(ticks))
    driver = Driver(runner)
    handles = []
    launch = runner.launch
    runner.launch = lambda plan: handles.append(launch(plan)) or handles[-1]  # type: ignore[method-assign]
    sequence = driver.add([1, 2, 3])
    assert driver.step([(sequence, 2)]) == []
    assert driver.step([(sequence, 1)]) == [sequence]
    assert [(h.begin_ns, h.end_ns, h.is_ready()) for h in handles] == [(100, 101, True), (102, 103, True)]
    assert [len(h.token_ids_sync()) for h in handles] == [0, 1]


def test_an_unknown_family_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r'family "gpt2" is not supported; known: .*llama'):
        build_runner(msgspec.structs.replace(TINY, family="gpt2"), [], OPTIONS)


def test_missing_tensors_are_named() -> None:
    tensors = [(name, t) for name, t in random_tensors(TINY) if "layers.1.mlp" not in name]
    with pytest.raises(ModelError, match=r"lacks tensors: model\.layers\.1\.mlp\.gate_proj\.weight, "):
        build_runner(TINY, tensors, OPTIONS)


def test_long_lists_of_missing_tensors_are_cut() -> None:
    with pytest.raises(ModelError, match="and 16 more"):
        build_runner(TINY, [], OPTIONS)


def test_unexpected_tensors_are_named() -> None:
    tensors = [*random_tensors(TINY), ("model.layers.0.self_attn.q_proj.bias", torch.zeros(96))]
    with pytest.raises(ModelError, match=r"has not: model\.layers\.0\.self_attn\.q_proj\.bias"):
        build_runner(TINY, tensors, OPTIONS)


def test_a_wrong_shape_is_named_with_both_shapes() -> None:
    tensors = [(n, t[:50] if n == "lm_head.weight" else t) for n, t in random_tensors(TINY)]
    with pytest.raises(ModelError, match=r"lm_head\.weight has shape \[50, 48\], .* implies \[101, 48\]"):
        build_runner(TINY, tensors, OPTIONS)


def test_a_length_over_the_models_own_is_refused() -> None:
    options = msgspec.structs.replace(OPTIONS, max_model_len=2000)
    with pytest.raises(ConfigError, match="max_model_len = 2000 is over the model's own limit of 1024"):
        build_runner(TINY, random_tensors(TINY), options)


def test_a_bad_memory_size_is_refused_before_a_weight_is_read() -> None:
    with pytest.raises(ConfigError, match='kv_memory = "8 GiBs" is not a size'):
        build_runner(TINY, iter([]), RunnerOptions(device="cpu", kv_memory="8 GiBs"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_cuda_is_refused() -> None:
    with pytest.raises(ConfigError, match='device = "cuda", but torch sees no CUDA device'):
        build_runner(TINY, [], RunnerOptions(device="cuda"))


def test_close_may_be_called_twice() -> None:
    runner = build_runner(TINY, random_tensors(TINY), OPTIONS)
    runner.close()
    runner.close()
