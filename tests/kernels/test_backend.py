"""backend = "triton", and what auto makes of a device: which code is chosen, and what is said of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from pipeline.errors import ConfigError
from pipeline.gpu import backends
from pipeline.gpu.kernels import interpreter
from pipeline.gpu.options import RunnerOptions
from tests.gpu.driver import TINY, random_tensors
from tests.kernels.isolated import isolated

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@contextmanager
def a_gpu(capability: tuple[int, int], interprets: bool = False) -> Iterator[None]:
    """As if torch saw one, and triton had been imported to compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        patch.setattr(torch.cuda, "get_device_name", lambda device: "Card 7")
        patch.setattr(interpreter, "is_interpreting", lambda: interprets)
        patch.setattr(backends, "TorchOps", lambda *args: "torch's")
        yield


def chosen(device: torch.device, **options: Any) -> tuple[Any, str, list[Any]]:
    """Ops, what its bits depend on, and the log."""
    with capture_logs() as log:
        ops, arithmetic = backends._make_ops(RunnerOptions(**options), "bf16", device)
    return ops, arithmetic, log


@isolated
def test_auto_on_a_gpu_is_triton() -> None:
    from pipeline.gpu.kernels.ops import TritonOps

    with a_gpu((8, 0)):
        ops, arithmetic, _ = chosen(CUDA)
    assert isinstance(ops, TritonOps)
    assert "Card 7" in arithmetic and "triton 3." in arithmetic


@isolated
def test_auto_on_an_old_gpu_is_torch_and_says_why() -> None:
    with a_gpu((7, 5)):
        ops, arithmetic, log = chosen(CUDA)
        with pytest.raises(ConfigError, match=r"compute capability 8\.0.* Card 7 has 7\.5"):
            chosen(CUDA, backend="triton")
    assert ops == "torch's" and "triton" not in arithmetic
    assert [(each["log_level"], each["event"]) for each in log] == [
        ("warning", "the model runs on torch, not on Triton's kernels")
    ]
    assert "Card 7 has 7.5" in log[0]["reason"]


@isolated
def test_a_gpu_does_not_run_what_is_interpreted() -> None:
    with a_gpu((9, 0), interprets=True):
        assert chosen(CUDA)[0] == "torch's"
        with pytest.raises(ConfigError, match="take TRITON_INTERPRET out of the environment"):
            chosen(CUDA, backend="triton")


@isolated
def test_the_cpu_interprets_if_told_to() -> None:
    from pipeline.gpu.kernels.ops import TritonOps

    ops, arithmetic, _ = chosen(CPU, backend="triton")
    assert isinstance(ops, TritonOps) and "interpreter" in arithmetic
    assert not isinstance(chosen(CPU)[0], TritonOps)
    with a_gpu((9, 0)), pytest.raises(ConfigError, match="set TRITON_INTERPRET=1 in the environment"):
        chosen(CPU, backend="triton")


def test_a_files_own_blocks_need_kernels() -> None:
    options = RunnerOptions(backend="torch", weights="int4")
    with pytest.raises(ConfigError, match=r'weights = "int4" needs the host backend.*backend = "torch"'):
        backends.open_model(TINY, random_tensors(TINY), options, torch.bfloat16, CPU)


@isolated
def test_a_model_without_blocks_has_no_int4_weights() -> None:
    options = RunnerOptions(backend="triton", weights="int4")
    with pytest.raises(
        ConfigError, match=r'weights = "int4".* Q4_0 and Q4_1 .* has none; use "int8" or "bf16"'
    ):
        backends.open_model(TINY, random_tensors(TINY), options, torch.bfloat16, CPU)


@isolated
def test_int8_weights_are_on_triton_too() -> None:
    from pipeline.gpu.kernels.linear_int8 import Int8Linear

    ops, arithmetic, _ = chosen(CPU, backend="triton", weights="int8")
    assert isinstance(ops.prepare_linear(torch.ones(4, 32), None), Int8Linear) and "int8" in arithmetic
    ops, arithmetic, _ = chosen(CPU, backend="triton")
    assert not isinstance(ops.prepare_linear(torch.ones(4, 32), None), Int8Linear)


@isolated
def test_heads_that_attention_has_no_kernel_for() -> None:
    from pipeline.gpu.kernels.ops import TritonOps

    for head_dim, kv_dtype, least in ((16, "int4", 32), (8, "bf16", 16), (512, "bf16", 16)):
        with pytest.raises(ConfigError, match=rf"heads of {head_dim} .* must have {least} to 256"):
            TritonOps(CPU, 16, kv_dtype).kv_format(4, 16, 1, head_dim)
