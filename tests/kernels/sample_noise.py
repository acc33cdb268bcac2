"""The noise of the sampling kernel, alone."""

import triton
import triton.language as tl

from pipeline.gpu.kernels.sampling import uniform


@triton.jit
def noise_kernel(seed_ptr, position_ptr, out_ptr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    tl.store(out_ptr + row, uniform(tl.load(seed_ptr + row), tl.load(position_ptr + row)))
