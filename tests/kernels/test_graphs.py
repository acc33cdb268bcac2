"""Decode steps on Triton's kernels as a graph has them: empty rows change nothing, and it is captured memory
that is read. In the interpreter, on a device that replays by running the work again.
"""

from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import build_runner
from pipeline.messages import SamplingParams
from tests.gpu.driver import TINY, random_tensors
from tests.gpu.recording_device import RecordingDevice
from tests.gpu.two_in_flight import generate
from tests.kernels.isolated import isolated

MODEL = replace(TINY, num_layers=1, hidden_size=32, intermediate_size=40, num_heads=4, num_kv_heads=2)
SIZES: dict[str, Any] = {
    "block_size": 8,
    "max_num_seqs": 3,
    "max_num_batched_tokens": 16,
    "max_model_len": 64,
}


@pytest.mark.nightly
@isolated
def test_texts_are_those_without_graphs() -> None:
    options = RunnerOptions(device="cpu", dtype="float32", backend="triton", num_blocks=24, **SIZES)
    asked = [
        (list(range(first, 2 * first + 4)), SamplingParams(temperature=0.0, max_tokens=num))
        for first, num in ((1, 4), (5, 2), (3, 5))
    ]
    expected = generate(build_runner(MODEL, random_tensors(MODEL), options), asked)
    device = RecordingDevice()
    with patch("pipeline.gpu.runner.open_device", lambda kind, clock: device):
        runner = build_runner(MODEL, random_tensors(MODEL), options)
    assert generate(runner, asked) == expected
    assert device.counts["captures"] == 3 and device.counts["replays"] >= 4
