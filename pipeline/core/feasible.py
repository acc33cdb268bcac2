"""Whether a request can ever run on a device, and what it then keeps of its context."""

from pipeline.core.residents import Residents
from pipeline.core.retention import Retention, Retentions
from pipeline.core.sequence import Sequence
from pipeline.errors import RequestError
from pipeline.messages import DeviceReady


def retention_of(
    sequence: Sequence, device: DeviceReady, retentions: Retentions, residents: Residents
) -> Retention:
    """Raises RequestError if it can never run."""
    if sequence.terms.cache_pin and residents.pins is None:
        raise RequestError(
            "This server pins nothing: stages.schedule.options.max_pinned_blocks is 0.",
            param="cache_pin",
            code="pinning_off",
        )
    retention = retentions.of(sequence.terms, sequence.max_kv_tokens)
    if retention.drops and not residents.allocation.is_by_block:
        raise RequestError(
            "This server keeps each context in one range, and drops nothing of it "
            '(stages.schedule.options.allocation is "contiguous").',
            param="kv_eviction",
            code="kv_eviction_off",
        )
    capacity = device.num_blocks * device.block_size
    if not retention.drops and sequence.max_kv_tokens > capacity:
        raise _too_large(sequence, capacity)
    return retention


def _too_large(sequence: Sequence, capacity: int) -> RequestError:
    needs = f"The KV cache holds {capacity} tokens; this request needs {sequence.max_kv_tokens}"
    if sequence.pooling:
        return RequestError(f"{needs}.", param="input", code="kv_capacity_exceeded")
    return RequestError(
        f"{needs} ({sequence.num_prompt_tokens} prompt + {sequence.max_tokens} max_tokens - 1). "
        "One with 'kv_eviction' needs no more than its 'kv_budget' and a block.",
        param="max_tokens",
        code="kv_capacity_exceeded",
    )
