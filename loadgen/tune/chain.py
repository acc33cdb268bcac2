"""One run along the whole chain: what the clients saw, and where in the server the time went. Pure."""

from collections.abc import Mapping

import msgspec

from loadgen.scrape import Scrape
from loadgen.summary import Spread, Summary

SEGMENT = "segment "
"""Prefix of the measures that are a segment's milliseconds."""

OTHERS = "others' CPU %"
"""What neither the server nor the generator used of the machine, in cores."""

_MIB = 2**20


class Cpu(msgspec.Struct, frozen=True):
    """CPU seconds used until a moment."""

    server_s: float
    generator_s: float
    machine_s: float
    """By everything."""


class Watched(msgspec.Struct, frozen=True):
    """What was seen of the server, from the first request to the last answer."""

    wall_s: float
    before: Scrape | None
    after: Scrape | None
    """None: it has no /metrics."""
    kv_blocks_peak: float | None
    rss_peak_bytes: int | None
    cpu_before: Cpu | None
    cpu_after: Cpu | None


def of_clients(summary: Summary) -> dict[str, float]:
    """Measures by name; a latency that no request has is left out."""
    found = {
        "output tok/s": summary.output_tokens_per_s,
        "requests/s": summary.requests_per_s,
        "failed": float(sum(summary.failures.values())),
    }
    if summary.goodput is not None:
        found["goodput %"] = summary.goodput.offered_pct
    spreads: dict[str, Spread | None] = {
        "TTFT": summary.ttft, "ITL": summary.itl, "TPOT": summary.tpot, "E2E": summary.e2e
    }  # fmt: skip
    for name, spread in spreads.items():
        if spread is not None:
            found |= {f"{name} p50 ms": spread.p50_ms, f"{name} p99 ms": spread.p99_ms}
    return found


def of_server(watched: Watched) -> dict[str, float]:
    """Measures by name; what the server or the machine does not tell is left out."""
    return _of_metrics(watched) | _of_process(watched)


def _of_metrics(watched: Watched) -> dict[str, float]:
    before, after = watched.before, watched.after
    if before is None or after is None:
        return {}
    grown = _Grown(before, after)
    found = {
        "preemptions": grown("stageline_preemptions_total"),
        "device busy %": _of(100, grown("stageline_device_busy_seconds_total"), watched.wall_s),
        "KV peak %": _of(100, watched.kv_blocks_peak, after.total("stageline_kv_blocks")),
    }
    steps = grown("stageline_steps_total")
    output = grown("stageline_tokens_total", kind="output")
    found["output tokens/step"] = _of(1, output, steps)
    found["all tokens/step"] = _of(1, grown("stageline_tokens_total"), steps)
    return {name: value for name, value in found.items() if value is not None} | _segments(grown)


def _segments(grown: "_Grown") -> dict[str, float]:
    """Mean milliseconds of a request in each segment."""
    name = "stageline_segment_seconds"
    found: dict[str, float] = {}
    for segment in grown.after.labels(f"{name}_sum", "segment"):
        mean_ms = _of(1000, grown(f"{name}_sum", segment=segment), grown(f"{name}_count", segment=segment))
        if mean_ms is not None:
            found[SEGMENT + segment] = mean_ms
    return found


def _of_process(watched: Watched) -> dict[str, float]:
    found: dict[str, float] = {}
    before, after = watched.cpu_before, watched.cpu_after
    if before is not None and after is not None and watched.wall_s:
        server_s = after.server_s - before.server_s
        others_s = after.machine_s - before.machine_s - server_s - (after.generator_s - before.generator_s)
        found["server CPU %"] = 100 * server_s / watched.wall_s
        found[OTHERS] = 100 * max(0.0, others_s) / watched.wall_s
    if watched.rss_peak_bytes is not None:
        found["RSS peak MiB"] = watched.rss_peak_bytes / _MIB
    return found


class _Grown:
    """How much a counter grew between two scrapes; None if the server does not have it."""

    def __init__(self, before: Scrape, after: Scrape) -> None:
        self.after = after
        self._before = before

    def __call__(self, name: str, **labels: str) -> float | None:
        last = self.after.total(name, **labels)
        return None if last is None else last - (self._before.total(name, **labels) or 0.0)


def _of(scale: float, part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else scale * part / whole


def segments(measures: Mapping[str, float]) -> dict[str, float]:
    """The segments among the measures: milliseconds by name."""
    return {name.removeprefix(SEGMENT): ms for name, ms in measures.items() if name.startswith(SEGMENT)}
