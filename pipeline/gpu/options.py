"""[device] of config.toml. Without torch, so that a configuration is checked in no time."""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

Count: TypeAlias = Annotated[int, Meta(ge=1)]


class RunnerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a model is run. Sizes are counts."""

    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """auto is bfloat16."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto is cuda where there is one."""
    placement: Literal["auto", "thread", "process"] = "auto"
    """Where the device workers live: see runtime.bridge and runtime.process."""
    backend: Literal["auto", "host", "triton", "torch"] = "auto"
    """host: the C++ kernels of gpu.host, on the CPU; triton: those of gpu.kernels, on CUDA, or on the CPU in
    Triton's interpreter, to check them. auto is host on the CPU, triton on CUDA, and torch where they cannot
    run."""
    weights: Literal["auto", "bf16", "int8", "int4"] = "auto"
    """Of the linears: int8; int4, a GGUF's own quantised blocks, on triton those of 4 bits.
    auto is the fastest that an evaluation has found good enough, else bf16."""
    kv_dtype: Literal["auto", "bf16", "int8", "fp8", "int4"] = "auto"
    """What keys and values are stored as (gpu.kv.dtype); auto is as the model's dtype."""
    block_size: Literal[8, 16, 32, 64, 128] = 16
    """Tokens a KV block."""
    max_num_seqs: Count = 64
    max_num_batched_tokens: Count = 512
    """Tokens a step, prefill and decode together."""
    max_model_len: Count | None = None
    """Longest sequence; None is the model's own limit."""
    kv_memory: str | Count | Annotated[float, Meta(gt=0, lt=1)] = "auto"
    """Bytes, a size such as "8GiB", a fraction of what is left beside weights and the largest step, or auto,
    which is sizing.AUTO_FRACTION of that; never more than all slots at full length can use."""
    num_blocks: Count | None = None
    """KV blocks; set, it wins over kv_memory, and no step is measured."""
    host_kv_memory: str | Annotated[int, Meta(ge=0)] = 0
    """Bytes, or a size, of host memory for the KV of preempted sequences and for prefix blocks that the cache
    has no room for; 0: they are computed again."""
    disk_kv: str | None = None
    """A file for the prefix blocks that host memory has no room for; without host_kv_memory they pass through
    runner.STAGING_BLOCKS there."""
    disk_kv_memory: str | Annotated[int, Meta(ge=0)] = "4GiB"
    """Bytes, or a size, of that file at most; 0: there is none."""
    disk_kv_keep: bool = False
    """It is there for the next start, with what is in it."""
    cuda_graphs: bool = True
    """Decode steps are captured at the start, and are one launch each from then on; where the device is CUDA
    and the backend waits for nothing."""
    cuda_graph_memory: str | Annotated[int, Meta(ge=0)] = "1GiB"
    """Bytes, or a size, that they may take, and"""
    cuda_graph_s: Annotated[float, Meta(ge=0)] = 30.0
    """seconds that capturing them may take. Large steps that are not captured run kernel by kernel."""
    num_threads: Count | None = None
    """CPU threads; None is what trial steps run best with (host), or one a core (torch)."""


def placement_of(options: RunnerOptions) -> Literal["thread", "process"]:
    """Where the device workers live. auto: docs/decisions/0026-where-the-device-worker-lives.md."""
    return "process" if options.placement == "auto" else options.placement
