"""Requests: taken in, refused, ended; and their times. Observed once each, when they end."""

from collections import Counter
from collections.abc import Iterable

from pipeline.messages import SEGMENTS, FinishReason
from pipeline.runtime.histogram import Histogram
from pipeline.telemetry.journal import Journal, RequestRecord
from pipeline.telemetry.metrics.exposition import Family

REJECTED = "rejected"
REASONS = tuple(reason.name.lower() for reason in FinishReason if reason is not FinishReason.NONE)
TOKENS = tuple(mantissa * 10**power for power in range(6) for mantissa in (1, 2, 5))
"""Of prompts and answers: 1 to 500,000."""


class RequestMetrics:
    """Counts what the door says, and hears of every ending from the journal.

    num_received == sum of `ended` and `rejected` + num_live, always.
    """

    def __init__(self, journal: Journal) -> None:
        self.num_received = 0
        self.ended: Counter[str] = Counter()
        """By finish reason: those that had a terminal row."""
        self.rejected: Counter[str] = Counter()
        """By code: taken in, and answered with an error before they had a row."""
        self.refused: Counter[str] = Counter()
        """By code: not taken in."""
        self.num_prompt_tokens = Histogram(TOKENS)
        self.num_output_tokens = Histogram(TOKENS)
        self.ttft = Histogram()
        self.itl = Histogram()
        """Time between tokens, as the streamer wrote them: it adds a chunk of n tokens as n equal gaps."""
        self.tpot = Histogram()
        self.e2e = Histogram()
        self.segments = [Histogram() for _ in SEGMENTS]
        journal.listen(self._hear)

    @property
    def num_live(self) -> int:
        """Requests taken in and not yet ended."""
        return self.num_received - self.ended.total() - self.rejected.total()

    def _hear(self, record: RequestRecord) -> None:
        if record.finish == REJECTED:
            self.rejected[record.code] += 1
            return
        self.ended[record.finish] += 1
        self.num_prompt_tokens.add(record.num_prompt_tokens)
        self.num_output_tokens.add(record.num_output_tokens)
        self.e2e.add(record.e2e_ns)
        for segment, value_ns in zip(self.segments, record.segments_ns, strict=True):
            segment.add(value_ns)
        if record.ttft_ns is not None:
            self.ttft.add(record.ttft_ns)
        if (tpot_ns := tpot(record)) is not None:
            self.tpot.add(tpot_ns)

    def families(self) -> Iterable[Family]:
        yield Family("stageline_requests_received_total", "counter", "Requests taken in").add(
            self.num_received
        )
        yield from self._endings()
        tokens = Family("stageline_tokens_total", "counter", "Tokens of ended requests")
        tokens.add(self.num_prompt_tokens.total, kind="prompt")
        yield tokens.add(self.num_output_tokens.total, kind="output")
        yield _tokens("prompt", "Prompt").add_histogram(self.num_prompt_tokens, scale=1)
        yield _tokens("output", "Output").add_histogram(self.num_output_tokens, scale=1)
        yield _seconds("ttft", "Arrival to the first token written").add_histogram(self.ttft)
        yield _seconds("itl", "From one token to the next, as written").add_histogram(self.itl)
        yield _seconds("tpot", "(e2e - ttft) / (output tokens - 1), per request").add_histogram(self.tpot)
        yield _seconds("e2e", "Arrival to the last byte written").add_histogram(self.e2e)
        segments = _seconds("segment", "Time of a request in one segment")
        for name, histogram in zip(SEGMENTS, self.segments, strict=True):
            segments.add_histogram(histogram, segment=name)
        yield segments

    def _endings(self) -> Iterable[Family]:
        ended = Family("stageline_requests_total", "counter", "Requests ended, by how")
        for reason in REASONS:
            ended.add(self.ended[reason], finish_reason=reason)
        yield ended
        yield _by_code("rejected", "Requests answered with an error before a row", self.rejected)
        yield _by_code("refused", "Requests refused at the door", self.refused)


def tpot(record: RequestRecord) -> int | None:
    """(e2e - ttft) / (output tokens - 1), ns; None where there are no two tokens."""
    if record.ttft_ns is None or record.num_output_tokens < 2:
        return None
    return (record.e2e_ns - record.ttft_ns) // (record.num_output_tokens - 1)


def _seconds(name: str, text: str) -> Family:
    return Family(f"stageline_{name}_seconds", "histogram", text)


def _tokens(name: str, what: str) -> Family:
    return Family(f"stageline_request_{name}_tokens", "histogram", f"{what} tokens of a request")


def _by_code(name: str, text: str, counts: Counter[str]) -> Family:
    family = Family(f"stageline_{name}_total", "counter", text)
    for code, count in sorted(counts.items()):
        family.add(count, code=code)
    return family
