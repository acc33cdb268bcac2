"""Every workload, tiny, in the interpreter: the kernel does what torch does, and a wrong one is found out."""

import pytest
import torch

from tests.kernels.isolated import isolated

KERNELS = ["attention_decode", "attention_prefill", "norm", "activation", "rope_kv"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
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
