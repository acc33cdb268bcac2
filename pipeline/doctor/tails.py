"""Attribution: where the time of the requests around a quantile went."""

from collections.abc import Callable, Sequence

from pipeline.doctor.diagnosis import Attribution
from pipeline.messages import SEGMENTS
from pipeline.telemetry import RequestRecord

BAND = 0.02
"""Half the width of a quantile's neighbourhood, as a share of all: its mean is steadier than one request."""


def attribution(requests: Sequence[RequestRecord], percent: int) -> Attribution | None:
    """Of requests that have segments; None without any that has a first token."""
    by_ttft = _around([r for r in requests if r.ttft_segments_ns], percent, lambda r: r.ttft_ns or 0)
    by_e2e = _around([r for r in requests if r.ttft_segments_ns], percent, lambda r: r.e2e_ns)
    if not by_ttft:
        return None
    return Attribution(
        percent=percent,
        num_requests=len(by_e2e),
        num_output_tokens=_mean([r.num_output_tokens for r in by_e2e]),
        ttft_ns=_mean([r.ttft_ns or 0 for r in by_ttft]),
        ttft_segments_ns=_means([r.ttft_segments_ns for r in by_ttft]),
        e2e_ns=_mean([r.e2e_ns for r in by_e2e]),
        segments_ns=_means([r.segments_ns for r in by_e2e]),
        decode_segments_ns=_means([decode_segments(r) for r in by_e2e]),
    )


def decode_segments(request: RequestRecord) -> tuple[int, ...]:
    """Each segment's time after the first token.

    At least 0: the first token's way to its client is in the segments up to it, the last one's in the whole.
    """
    return tuple(
        max(0, whole - first)
        for whole, first in zip(request.segments_ns, request.ttft_segments_ns, strict=True)
    )


def around(requests: Sequence[RequestRecord], percent: int) -> list[RequestRecord]:
    """The requests around a quantile of E2E."""
    return _around([r for r in requests if r.ttft_segments_ns], percent, lambda r: r.e2e_ns)


def _around(
    requests: list[RequestRecord], percent: int, size: Callable[[RequestRecord], int]
) -> list[RequestRecord]:
    requests.sort(key=size)
    last = len(requests) - 1
    low, high = (percent / 100 + side * BAND for side in (-1, 1))
    return requests[round(max(0.0, low) * last) : round(min(1.0, high) * last) + 1]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _means(rows: Sequence[tuple[int, ...]]) -> dict[str, float]:
    return {name: _mean([row[i] for row in rows]) for i, name in enumerate(SEGMENTS)}
