"""What is told of a request that has ended: why it ended, what it used, where its time went."""

from collections.abc import Sequence

from pipeline.messages import SEGMENTS, Completion, FinishReason, Timings

_NS_PER_MS = 1e6


def finish_word(reason: FinishReason) -> str:
    """OpenAI knows "stop", "length" and "content_filter"; one that the server cut off says "cancelled"."""
    return "content_filter" if reason is FinishReason.FILTERED else reason.name.lower()


def usage_of(completions: Sequence[Completion], num_alike: int = 1) -> dict[str, object]:
    """OpenAI's usage object, and what was dropped of the contexts, if any was. Completion tokens are those
    sampled, whether or not a stop string hid them.

    Args:
        num_alike: so many choices after one another answer the same prompt, which counts once.
    """
    first = completions[::num_alike]
    prompt = sum(each.num_prompt_tokens for each in first)
    output = sum(each.num_output_tokens for each in completions)
    usage: dict[str, object] = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(each.num_cached_tokens for each in first)},
    }
    if dropped := sum(each.num_dropped_tokens for each in completions):
        usage["kv_dropped_tokens"] = dropped
    return usage


def timings_of(timings: Timings) -> dict[str, object]:
    """Milliseconds with all digits of the nanoseconds, so that the segments still add up."""
    return {
        "e2e_ms": timings.e2e_ns / _NS_PER_MS,
        "ttft_ms": None if timings.ttft_ns is None else timings.ttft_ns / _NS_PER_MS,
        "segments_ms": named_ms(timings.segments_ns),
        "ttft_segments_ms": named_ms(timings.ttft_segments_ns),
    }


def named_ms(segments_ns: tuple[int, ...]) -> dict[str, float]:
    """Segments by name; empty for a request without a first token."""
    return {name: ns / _NS_PER_MS for name, ns in zip(SEGMENTS, segments_ns, strict=bool(segments_ns))}
