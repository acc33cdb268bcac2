"""What the host does for a step on Triton's kernels, counted: launches, products, results, copies, waits."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import build_runner
from pipeline.messages import SamplingParams
from tests.gpu.driver import TINY, Driver, random_tensors
from tests.gpu.recording_device import RecordingDevice
from tests.kernels.isolated import isolated

SIZES: dict[str, Any] = {
    "block_size": 8,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 24,
    "max_model_len": 64,
}
OF_A_STEP = {
    "where": 1,
    "eq": 1,
    "index_select": 1,  # of the tokens that the last step has sampled, where the plan does not know them
    "embedding": 1,
    "index": 3,  # cos, sin, and the rows that yield a token
    "index_copy_": 1,  # the tokens are kept for the next step
}
"""Operations of torch beside products and memory for results."""


class Host(TorchDispatchMode):
    """Counts kernels, and torch's operations but for views and what is the kernels' or the device's own."""

    def __init__(self, device: RecordingDevice) -> None:
        super().__init__()
        self._device = device
        self.launches, self.operations = Counter[str](), Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Tensor:
        returns = func._schema.returns
        is_view = any(each.alias_info is not None and not each.alias_info.is_write for each in returns)
        if not self._device.is_hidden and not is_view:
            self.operations[func._schema.name.split("::")[1]] += 1
        result: Tensor = func(*args, **(kwargs or {}))
        return result

    @contextmanager
    def counting(self) -> Iterator[None]:
        from triton.runtime.interpreter import GridExecutor

        run = GridExecutor.__call__

        def counted(executor: Any, *args: Any, **kwargs: Any) -> None:
            self.launches[executor.fn.__name__] += 1
            with self._device.hidden():
                run(executor, *args, **kwargs)

        with patch.object(GridExecutor, "__call__", counted), self:
            yield


@pytest.mark.parametrize(("num_layers", "num_rows"), [(1, 3), (2, 1)])
@isolated
def test_a_decode_step_goes_by_the_layers_and_not_by_the_rows(num_layers: int, num_rows: int) -> None:
    """Kernel by kernel; where there are graphs, one replay stands for all but the last of these."""
    model = replace(TINY, num_layers=num_layers)
    options = RunnerOptions(device="cpu", dtype="float32", backend="triton", num_blocks=24, **SIZES)
    device = RecordingDevice(captures=False)
    with patch("pipeline.gpu.runner.open_device", lambda kind, clock: device):
        driver = Driver(build_runner(model, random_tensors(model), options))
    rows = [driver.add(range(1, 3), SamplingParams(temperature=0.7, seed=k)) for k in range(num_rows)]
    driver.step([(row, 2) for row in rows])
    before, host = device.counts.copy(), Host(device)
    with host.counting():
        driver.step([(row, 1) for row in rows])
    of_layers = dict.fromkeys(("rope_kv_kernel", "decode_kernel", "gate_kernel"), num_layers)
    assert host.launches == {**of_layers, "rms_norm_kernel": 2 * num_layers + 1, "sample_kernel": 1}
    products = host.operations.pop("_linear_pointwise", 0) + host.operations.pop("linear", 0)
    assert products == 4 * num_layers + 1
    assert host.operations.pop("empty") == 4 * num_layers + 2, (
        "norms', attention's and gates' results, token ids"
    )
    assert host.operations == OF_A_STEP
    assert device.counts - before == {"uploads": 1, "starts": 1, "finishes": 1, "waits": 1}, (
        "the driver's wait"
    )
