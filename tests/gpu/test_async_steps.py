"""Steps on a device that is late: texts are as on the CPU, and what a step asks of the device is counted."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.core.policies import SchedulingOptions
from pipeline.gpu.backends import Opened
from pipeline.gpu.models import find_model
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import Runner, build_runner
from pipeline.messages import SamplingParams
from tests.gpu.driver import TINY, Driver, random_tensors
from tests.gpu.padded_ops import PaddedOps
from tests.gpu.recording_device import RecordingDevice
from tests.gpu.two_in_flight import Asked, generate

OPTIONS = RunnerOptions(
    device="cpu",
    dtype="float32",
    backend="torch",
    num_blocks=24,
    max_num_seqs=6,
    max_num_batched_tokens=24,
    max_model_len=128,
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
PER_STEP = {"uploads": 1, "starts": 1, "finishes": 1}


def requests() -> list[Asked]:
    """Of several lengths, greedy and not; together they need more blocks than there are."""
    return [
        ([(7 * number + k) % TINY.vocab_size for k in range(5 + 11 * number % 50)], replace(GREEDY, **how))
        for number, how in enumerate(
            (
                {},
                {"temperature": 1.0, "seed": 3, "max_tokens": 14},
                {"max_tokens": 20},
                {"temperature": 0.7, "top_k": 9, "seed": 5},
                {"repetition_penalty": 1.5, "max_tokens": 12},
                {"logprobs": 2, "temperature": 1.0, "seed": 11},
                {"max_tokens": 30},
                {"allowed_token_ids": tuple(range(3, 40)), "min_p": 0.1, "temperature": 2.0, "seed": 2},
                {"logit_bias": ((5, 4.0),), "typical_p": 0.9, "bad_token_ids": ((1, 2), (9,)), "seed": 8},
                {"min_tokens": 4, "end_ids": (7, 12), "presence_penalty": 1.0, "frequency_penalty": 0.5},
            )
        )
    ]


def runner_on(
    monkeypatch: pytest.MonkeyPatch, device: RecordingDevice | None = None, **changes: Any
) -> Runner:
    """On the CPU if no device is given."""
    options = replace(OPTIONS, **changes)

    def open_model(architecture: Any, weights: Any, _options: Any, dtype: Any, where: Any, _e: Any) -> Opened:
        ops = PaddedOps(where, options.block_size, "fp32")
        model = find_model("llama").load(architecture, weights, ops, dtype, where)
        return Opened(model, ops, None, "fp32", can_capture=True)

    with monkeypatch.context() as patch:
        patch.setattr("pipeline.gpu.runner.open_model", open_model)
        if device is not None:
            patch.setattr("pipeline.gpu.runner.open_device", lambda kind, clock: device)
        return build_runner(TINY, random_tensors(TINY), options)


@pytest.fixture
def expected(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    found = generate(runner_on(monkeypatch), requests())
    assert len({tuple(answer) for answer in found}) == len(found)
    return found


@pytest.mark.parametrize("captures", [False, True])
def test_texts_are_those_of_the_cpu_with_two_steps_in_flight(
    monkeypatch: pytest.MonkeyPatch, expected: list[list[int]], captures: bool
) -> None:
    device = RecordingDevice(captures=captures)
    assert generate(runner_on(monkeypatch, device), requests()) == expected
    assert bool(device.counts["replays"]) == captures
    assert device.counts["replays"] < device.counts["finishes"], "prompts run kernel by kernel"


def test_rows_with_a_window_are_captured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    options = SchedulingOptions(max_wait_ms=None, kv_eviction="sink_window", kv_budget=48, kv_sinks=4)
    asked = [(list(range(1, 60)), replace(GREEDY, max_tokens=40)), (list(range(9, 29)), GREEDY)]
    on_cpu = generate(runner_on(monkeypatch), asked, options)
    device = RecordingDevice()
    assert generate(runner_on(monkeypatch, device), asked, options) == on_cpu
    assert device.counts["replays"] > 30
    assert generate(runner_on(monkeypatch), asked) != on_cpu, "something was dropped"


def test_dropped_blocks_are_the_same_whoever_is_asked_when(monkeypatch: pytest.MonkeyPatch) -> None:
    options = SchedulingOptions(max_wait_ms=None, kv_eviction="heavy_hitter", kv_budget=48, kv_sinks=4)
    asked = [(list(range(1, 60)), replace(GREEDY, max_tokens=50)), (list(range(9, 29)), GREEDY)]
    on_cpu = generate(runner_on(monkeypatch), asked, options)
    device = RecordingDevice()
    runner = runner_on(monkeypatch, device)
    with counted(device) as counts:
        assert generate(runner, asked, options) == on_cpu
    assert counts["device waits"] == 0
    assert generate(runner_on(monkeypatch), asked) != on_cpu, "something was dropped"


@pytest.mark.parametrize("num_rows", [1, 3, 6])
def test_a_step_is_one_copy_one_event_and_no_wait(monkeypatch: pytest.MonkeyPatch, num_rows: int) -> None:
    device = RecordingDevice(captures=False)
    driver = Driver(runner_on(monkeypatch, device))
    sequences = [
        driver.add(range(1, 5 + k), replace(GREEDY, seed=k, temperature=k / 2)) for k in range(num_rows)
    ]
    for _ in range(7):  # prompts in chunks, then decode
        with counted(device) as counts:
            driver.step(driver.next_rows(sequences, 3))
        assert counts == {**PER_STEP, "waits": 1}, "the wait is the driver's own, for the token ids"


def test_a_captured_decode_step_is_one_launch_beside_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    device = RecordingDevice()
    runner = runner_on(monkeypatch, device)
    launches = []
    for num_rows in (1, 3, 6):
        driver = Driver(runner)
        sequences = [driver.add(range(1, 4)) for _ in range(num_rows)]
        driver.step([(sequence, 3) for sequence in sequences])
        with counted(device) as counts, Kernels(device) as kernels:
            driver.step([(sequence, 1) for sequence in sequences])
        assert counts == {**PER_STEP, "waits": 1, "replays": 1}
        launches.append(kernels.outside)
    # the greedy half of SamplingOp, and the tokens are kept; whatever the number of rows
    assert launches == [["max", "gt", "nonzero_numpy", "index_copy_"]] * 3


def test_what_no_graph_takes_runs_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    device = RecordingDevice()
    driver = Driver(runner_on(monkeypatch, device))
    whole, halves = driver.add(range(1, 4)), driver.add(range(1, 3))
    driver.step([(whole, 3), (halves, 1)])
    with counted(device) as counts:
        driver.step([(whole, 1), (halves, 1)])  # the last token of a prompt: all rows yield one
    assert counts["replays"] == 1
    third = driver.add(range(1, 4))
    with counted(device) as counts:
        driver.step([(whole, 1), (third, 1)])  # one row is of a prompt that goes on
        driver.step([(whole, 1), (third, 2)])
    assert counts["replays"] == 0


def test_a_step_that_failed_leaves_the_next_ones_right(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [sequence.output for sequence in go(Driver(runner_on(monkeypatch)))]
    device = RecordingDevice(captures=False)
    runner = runner_on(monkeypatch, device)
    driver = Driver(runner)
    forward = runner._model.forward
    failing = driver.add(range(1, 9))
    with monkeypatch.context() as patch:
        patch.setattr(runner._model, "forward", lambda *_: (_ for _ in ()).throw(MemoryError("no room")))
        with pytest.raises(MemoryError, match="no room"):
            driver.step([(failing, 8)])
    assert runner._model.forward == forward
    waits = device.counts["device waits"]
    driver.remove(failing)
    assert [sequence.output for sequence in go(driver)] == expected
    assert device.counts["device waits"] == waits + 1, "before the memory that it was sent from is used again"


def go(driver: Driver) -> list[Any]:
    sequences = [driver.add(range(3, 9 + k)) for k in range(2)]
    while any(len(sequence.output) < 6 for sequence in sequences):
        driver.step(driver.next_rows(sequences, 4))
    return sequences


def test_a_fork_has_a_queue_and_graphs_of_its_own(
    monkeypatch: pytest.MonkeyPatch, expected: list[list[int]]
) -> None:
    device = RecordingDevice()
    runner = runner_on(monkeypatch, device)
    fork = runner.fork()
    before = device.counts.copy()
    assert generate(fork, requests()) == expected
    assert device.counts == before and device.forks[0].counts["replays"]


def test_graphs_count_when_the_cache_is_sized(monkeypatch: pytest.MonkeyPatch) -> None:
    def blocks(graph_bytes: int, **changes: Any) -> int:
        device = RecordingDevice(graph_bytes=(graph_bytes, 0))
        monkeypatch.setattr("pipeline.gpu.memory.rehearsal.free_bytes", lambda _: 2**30)
        monkeypatch.setattr("pipeline.gpu.memory.rehearsal.in_use_bytes", lambda _: 0)
        monkeypatch.setattr("pipeline.gpu.memory.rehearsal.most_bytes", lambda _, work: int(work() is None))
        options = {"num_blocks": None, "kv_memory": 0.5, "max_num_seqs": 10**5, "max_num_batched_tokens": 8}
        return runner_on(monkeypatch, device, **options, **changes).capacity.num_blocks

    block = TINY.num_layers * 2 * TINY.num_kv_heads * TINY.head_dim * 4 * OPTIONS.block_size
    with_graphs, without = blocks(2**28), blocks(2**28, cuda_graphs=False)
    assert (without - with_graphs) * block == pytest.approx(2**27, rel=0.2), "half of what they take"
    capped = blocks(2**28, cuda_graph_memory="1MiB")
    assert (without - capped) * block < 2**25, "never more than they may take"


@contextmanager
def counted(device: RecordingDevice) -> Iterator[Counter[str]]:
    """What the device was asked for meanwhile."""
    before, counts = device.counts.copy(), Counter[str]()
    yield counts
    counts.update(device.counts - before)


class Kernels(TorchDispatchMode):
    """Names of the operations outside graphs that are no views, and are not the device's own copies."""

    def __init__(self, device: RecordingDevice) -> None:
        super().__init__()
        self._device = device
        self.outside: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Tensor:
        returns = func._schema.returns
        is_view = any(each.alias_info is not None and not each.alias_info.is_write for each in returns)
        if not self._device.is_hidden and not is_view:
            self.outside.append(func._schema.name.removeprefix("aten::"))
        result: Tensor = func(*args, **(kwargs or {}))
        return result
