"""What decode attention relies on of the machine code, and no run in the interpreter shows."""

import re

import triton
from triton.backends.compiler import GPUTarget

from pipeline.gpu.kernels.aot import _source
from pipeline.gpu.kernels.attention_decode import variants
from pipeline.gpu.kernels.variant import ModelShape

TWO_TO_THE_120 = "0f7B800000"
"""As PTX writes it."""


def test_copies_counters_and_subnormals() -> None:
    shape = ModelShape("a model", 8, 2, 64, 512, 1024, 1000, kv_dtype="fp8")
    variant = variants(shape)[0]
    options = {"num_warps": variant.config.num_warps, "num_stages": variant.config.num_stages}
    options["enable_fp_fusion"] = True
    code = triton.compile(_source(variant), target=GPUTarget("cuda", 80, 32), options=options).asm["ptx"]
    assert re.search(r"cp\.async\.cg\.shared\.global.* 0x10", code), "16 bytes a thread, past the L1 cache"
    assert "mma.sync.aligned.m16n8k16" in code
    widened = [line for line in code.splitlines() if TWO_TO_THE_120 in line]
    assert widened and not any(".ftz" in line for line in widened), "the smallest e4m3 are subnormal first"
    counted = code.index("atom.global.gpu.acq_rel.add.u32")
    assert "bar.sync" in code[code.rindex("st.global", 0, counted) : counted], "all threads have written"
