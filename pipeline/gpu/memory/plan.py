"""What a model's KV takes and how many requests it serves: a plan before a start. Without torch."""

import msgspec

from pipeline.checkpoint.card import Architecture
from pipeline.core.block_pool import blocks_for
from pipeline.errors import ConfigError
from pipeline.gpu.kv.dtype import KvDtype, token_bytes


class Load(msgspec.Struct, frozen=True):
    """Requests that are all alike."""

    num_tokens: int
    """Prompt and answer together."""
    num_output: int = 0
    """Of these, the answer's."""
    concurrency: int = 1


class Fits(msgspec.Struct, frozen=True):
    """How many of them run at once."""

    paged: int
    """All at their full length: nobody is ever preempted."""
    paged_half_way: int
    """With half of their answers written, which is what a long run holds on average."""
    contiguous_request: int
    """Each with one range for its prompt and max_tokens, reserved when it is admitted;"""
    contiguous_model: int
    """for the longest that the model allows, as engines did before paging."""


class MemoryPlan(msgspec.Struct, frozen=True):
    """Sizes in bytes."""

    kv_dtype: KvDtype
    token_bytes: int
    block_size: int
    block_bytes: int
    num_blocks: int
    kv_bytes: int
    num_kv_tokens: int
    fits: Fits
    concurrency: int
    needed_blocks: int
    """For `concurrency` requests at full length."""
    needed_bytes: int


def plan_memory(
    architecture: Architecture,
    kv_dtype: KvDtype,
    block_size: int,
    num_blocks: int,
    max_model_len: int,
    load: Load,
) -> MemoryPlan:
    """Raises ConfigError for requests that the model cannot have."""
    if not 0 <= load.num_output < load.num_tokens:
        raise ConfigError(
            f"--output {load.num_output}: must be less than --context {load.num_tokens}, prompt and answer"
        )
    if load.num_tokens > max_model_len:
        raise ConfigError(f"--context {load.num_tokens}: the model's length is {max_model_len} tokens")
    a_token = token_bytes(architecture, kv_dtype)
    whole = blocks_for(load.num_tokens, block_size)
    needed_blocks = load.concurrency * whole
    return MemoryPlan(
        kv_dtype=kv_dtype,
        token_bytes=a_token,
        block_size=block_size,
        block_bytes=block_size * a_token,
        num_blocks=num_blocks,
        kv_bytes=num_blocks * block_size * a_token,
        num_kv_tokens=num_blocks * block_size,
        fits=Fits(
            paged=num_blocks // whole,
            paged_half_way=num_blocks // blocks_for(load.num_tokens - load.num_output // 2, block_size),
            contiguous_request=num_blocks // whole,
            contiguous_model=num_blocks // blocks_for(max_model_len, block_size),
        ),
        concurrency=load.concurrency,
        needed_blocks=needed_blocks,
        needed_bytes=needed_blocks * block_size * a_token,
    )
