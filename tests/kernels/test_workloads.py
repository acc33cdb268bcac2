"""Every workload, tiny, in the interpreter: the kernel does what torch does, and a wrong one is found out."""

import pytest
import torch

from tests.kernels.isolated import isolated

BY_KV = ["attention_decode", "attention_prefill", "attention_mass", "rope_kv", "block_copy"]
OTHERS = ["norm", "activation", "sampling", "linear_int8", "linear_int4"]
CASES = [(kernel, kv_dtype) for kernel in BY_KV for kv_dtype in ("bf16", "int8")] + [
    (kernel, "bf16") for kernel in OTHERS
]


@pytest.mark.parametrize(("kernel", "kv_dtype"), CASES)
@isolated
def test_right(kernel: str, kv_dtype: str) -> None:
    from pipeline.gpu.kernels.variant import ModelShape
    from pipeline.gpu.kernels.workloads.suite import TINY, build

    torch.manual_seed(1)
    shape = ModelShape("tiny", 4, 2, 32, 64, 96, 128, kv_dtype=kv_dtype)
    for workload in build(kernel, shape, TINY, torch.device("cpu")):
        assert 0 <= workload.error(None) <= workload.tolerance
        workload.run(None)
        assert workload.num_bytes > 0
        if workload.rival:
            workload.rival()


def test_what_an_error_is() -> None:
    from pipeline.gpu.kernels.workloads.workload import relative_error

    expected = torch.tensor([1.0, -4.0])
    assert relative_error(torch.tensor([1.0, -3.0]), expected) == 0.25
    assert relative_error(torch.tensor([torch.nan, -4.0]), expected) == torch.inf
    assert relative_error(expected, torch.zeros(2)) == torch.inf
