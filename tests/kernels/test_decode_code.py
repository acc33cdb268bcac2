"""What decode attention relies on of the machine code, and no run in the interpreter shows."""

import re

import triton
from triton.backends.compiler import GPUTarget

from pipeline.gpu.kernels.aot import _source
from pipeline.gpu.kernels.attention_decode import variants
from pipeline.gpu.kernels.variant import ModelShape
from pipeline.gpu.kv.dtype import KvDtype


def ptx(kv_dtype: KvDtype, arch: int) -> str:
    shape = ModelShape("a model", 8, 2, 64, 512, 1024, 1000, kv_dtype=kv_dtype)
    variant = variants(shape)[0]
    options = {"num_warps": variant.config.num_warps, "num_stages": variant.config.num_stages}
    options["enable_fp_fusion"] = True
    target = GPUTarget("cuda", arch, 32)
    return str(triton.compile(_source(variant), target=target, options=options).asm["ptx"])


def test_copies_and_counters() -> None:
    code = ptx("bf16", 80)
    assert re.search(r"cp\.async\.cg\.shared\.global.* 0x10", code), "16 bytes a thread, past the L1 cache"
    assert "mma.sync.aligned.m16n8k16" in code
    counted = code.index("atom.global.gpu.acq_rel.add.u32")
    assert "bar.sync" in code[code.rindex("st.global", 0, counted) : counted], "all threads have written"


def test_codes() -> None:
    code = ptx("fp8", 90)
    assert "ld.global.v4.b32" in code, "16 codes a thread at once"
    widened = re.findall(r"\bmul\.\S*bf16x2\b", code)
    assert widened, "two codes at a time"
    assert not any(".ftz" in each for each in widened), "the smallest e4m3 are subnormal first"
