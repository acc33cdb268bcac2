"""The names of vLLM's metrics that public dashboards use, over our own figures. Off: metrics.vllm_names.

Names, labels and meaning: vLLM's v1/metrics/loggers.py and its Grafana board. Buckets are ours, so that each
histogram is kept once. What vLLM has and we do not (LoRA, speculation) is absent.
"""

from collections.abc import Iterable, Mapping

from pipeline.messages import SEGMENTS
from pipeline.runtime.histogram import Histogram
from pipeline.telemetry.journal import Journal, RequestRecord
from pipeline.telemetry.metrics.exposition import Family, Kind
from pipeline.telemetry.metrics.requests import RequestMetrics
from pipeline.telemetry.metrics.steps import StepMetrics

QUEUE = SEGMENTS.index("schedule.wait")
REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}
"""Ours to vLLM's."""


class VllmNames:
    """Adds only the phases of a request that are not one of our segments; see `phases`."""

    def __init__(self, model: str, journal: Journal, requests: RequestMetrics, steps: StepMetrics) -> None:
        self._labels = {"model_name": model, "engine": "0"}
        self._requests = requests
        self._steps = steps
        self._phases = {name: Histogram() for name in ("queue", "prefill", "decode", "inference")}
        journal.listen(self._hear)

    def _hear(self, record: RequestRecord) -> None:
        for name, value_ns in phases(record).items():
            self._phases[name].add(value_ns)

    def families(self, gauges: Mapping[str, float]) -> Iterable[Family]:
        """`gauges` are those that the scheduler shows, by our names; before it is ready there are none."""
        yield from self._state(gauges)
        yield from self._counts()
        yield from self._times()

    def _state(self, gauges: Mapping[str, float]) -> Iterable[Family]:
        if "kv_blocks" not in gauges:
            return
        used = gauges["kv_blocks_used"] / gauges["kv_blocks"]
        yield self._family("num_requests_running", "gauge").add(gauges["requests_running"])
        yield self._family("num_requests_waiting", "gauge").add(gauges["requests_waiting"])
        yield self._family("kv_cache_usage_perc", "gauge").add(used)
        yield self._family("gpu_cache_usage_perc", "gauge").add(used)
        yield self._family("num_preemptions_total", "counter").add(gauges["preemptions_total"])
        if "prefix_queried_tokens_total" in gauges:
            queried, hit = gauges["prefix_queried_tokens_total"], gauges["prefix_hit_tokens_total"]
            yield self._family("prefix_cache_queries_total", "counter").add(queried)
            yield self._family("prefix_cache_hits_total", "counter").add(hit)

    def _counts(self) -> Iterable[Family]:
        requests = self._requests
        prompt, output = requests.num_prompt_tokens, requests.num_output_tokens
        yield self._family("prompt_tokens_total", "counter").add(prompt.total)
        yield self._family("generation_tokens_total", "counter").add(output.total)
        success = self._family("request_success_total", "counter")
        for ours, theirs in REASONS.items():
            success.add(requests.ended[ours], finished_reason=theirs)
        yield success
        yield self._family("request_prompt_tokens").add_histogram(prompt, scale=1)
        yield self._family("request_generation_tokens").add_histogram(output, scale=1)
        yield self._family("request_max_num_generation_tokens").add_histogram(output, scale=1)
        yield self._family("iteration_tokens_total").add_histogram(self._steps.tokens, scale=1)

    def _times(self) -> Iterable[Family]:
        requests = self._requests
        yield self._family("time_to_first_token_seconds").add_histogram(requests.ttft)
        yield self._family("inter_token_latency_seconds").add_histogram(requests.itl)
        yield self._family("time_per_output_token_seconds").add_histogram(requests.itl)
        yield self._family("request_time_per_output_token_seconds").add_histogram(requests.tpot)
        yield self._family("e2e_request_latency_seconds").add_histogram(requests.e2e)
        for name, histogram in self._phases.items():
            yield self._family(f"request_{name}_time_seconds").add_histogram(histogram)

    def _family(self, name: str, kind: Kind = "histogram") -> Family:
        return Family(f"vllm:{name}", kind, "See docs/metrics.md", self._labels)


def phases(record: RequestRecord) -> dict[str, int]:
    """The life of a request with a first token as vLLM cuts it, ns: waiting for a place, from the place to
    the first token, from there to the end, and the latter two together.
    """
    if record.ttft_ns is None:
        return {}
    queue_ns = record.ttft_segments_ns[QUEUE]
    prefill_ns = record.ttft_ns - sum(record.ttft_segments_ns[:QUEUE]) - queue_ns
    decode_ns = record.e2e_ns - record.ttft_ns
    return {
        "queue": queue_ns,
        "prefill": prefill_ns,
        "decode": decode_ns,
        "inference": prefill_ns + decode_ns,
    }
