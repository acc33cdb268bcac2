"""OpenTelemetry's gen_ai server metrics, as Prometheus spells them. Off: metrics.gen_ai_names.

Names, attributes and buckets: OpenTelemetry semantic conventions, gen-ai/gen-ai-metrics.md; the spelling:
their Prometheus compatibility page. The buckets are prescribed, so a request is counted once more here.
"""

from collections import defaultdict
from collections.abc import Iterable

from pipeline.runtime.histogram import Histogram
from pipeline.telemetry.journal import Journal, RequestRecord
from pipeline.telemetry.metrics.exposition import NS, Family
from pipeline.telemetry.metrics.requests import tpot

DURATION_NS = tuple(10_000_000 << power for power in range(14))
"""0.01 to 81.92 s."""
TTFT_NS = tuple(
    round(ms * 1e6) for ms in (1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10_000)
)
TPOT_NS = tuple(round(ms * 1e6) for ms in (10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1000, 2500))
TOKENS = tuple(1 << power for power in range(0, 28, 2))

Series = tuple[tuple[str, str], ...]
"""Labels beside those that all have."""


class GenAiNames:
    """Hears of every ended request from the journal."""

    def __init__(self, model: str, journal: Journal) -> None:
        self._labels = {
            "gen_ai_provider_name": "stageline",
            "gen_ai_request_model": model,
            "gen_ai_response_model": model,
        }
        self._durations: dict[Series, Histogram] = defaultdict(lambda: Histogram(DURATION_NS))
        self._ttfts: dict[Series, Histogram] = defaultdict(lambda: Histogram(TTFT_NS))
        self._tpots: dict[Series, Histogram] = defaultdict(lambda: Histogram(TPOT_NS))
        self._tokens: dict[Series, Histogram] = defaultdict(lambda: Histogram(TOKENS))
        journal.listen(self._hear)

    def _hear(self, record: RequestRecord) -> None:
        operation = (("gen_ai_operation_name", "chat" if record.is_chat else "text_completion"),)
        error = error_type(record)
        self._durations[(*operation, ("error_type", error)) if error else operation].add(record.e2e_ns)
        if error:
            return
        self._tokens[(*operation, ("gen_ai_token_type", "input"))].add(record.num_prompt_tokens)
        self._tokens[(*operation, ("gen_ai_token_type", "output"))].add(record.num_output_tokens)
        if record.ttft_ns is not None:
            self._ttfts[operation].add(record.ttft_ns)
        if (tpot_ns := tpot(record)) is not None:
            self._tpots[operation].add(tpot_ns)

    def families(self) -> Iterable[Family]:
        yield self._family("server_request_duration_seconds", "Arrival to the end", self._durations)
        yield self._family("server_time_to_first_token_seconds", "Of successful requests", self._ttfts)
        yield self._family("server_time_per_output_token_seconds", "After the first token", self._tpots)
        yield self._family("client_token_usage", "Tokens of a request", self._tokens, scale=1)

    def _family(self, name: str, text: str, series: dict[Series, Histogram], scale: float = NS) -> Family:
        family = Family(f"gen_ai_{name}", "histogram", text, self._labels)
        for labels, histogram in series.items():
            family.add_histogram(histogram, scale, **dict(labels))
        return family


def error_type(record: RequestRecord) -> str:
    """Empty for a request that ended well."""
    if record.finish == "rejected":
        return record.code
    return record.finish if record.finish in ("cancelled", "error") else ""
