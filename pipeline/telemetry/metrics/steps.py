"""Steps: what the device did, what was in its batches, and what it waited for. Observed once a step."""

from collections.abc import Iterable

from pipeline.messages import DeviceReady
from pipeline.runtime.histogram import SIZES, Histogram
from pipeline.telemetry.journal import Journal, StepRecord
from pipeline.telemetry.metrics.exposition import NS, Family

TOKENS = tuple(1 << power for power in range(15))
"""Of a step: 1 to 16,384."""


class StepMetrics:
    """Hears of every applied step from the journal."""

    def __init__(self, journal: Journal) -> None:
        self.device: DeviceReady | None = None
        """What the device holds; None before it is open."""
        self.tokens = Histogram(TOKENS)
        self._rows = Histogram(SIZES)
        self._device = Histogram()
        self._host_gap = Histogram()
        self._whole = Histogram()
        self._num_prefill_tokens = 0
        self._num_decode_tokens = 0
        self._last: StepRecord | None = None
        journal.listen_steps(self._hear)

    def _hear(self, record: StepRecord) -> None:
        self._device.add(record.end_ns - record.begin_ns)
        self._host_gap.add(record.host_gap_ns)
        self._whole.add(record.applied_ns - record.planned_ns)
        self._rows.add(record.num_rows)
        self.tokens.add(record.num_prefill_tokens + record.num_decode_tokens)
        self._num_prefill_tokens += record.num_prefill_tokens
        self._num_decode_tokens += record.num_decode_tokens
        self._last = record

    def families(self, num_used_blocks: float) -> Iterable[Family]:
        """`num_used_blocks` is of now; the records know of then."""
        busy = Family("stageline_device_busy_seconds_total", "counter", "Time in steps")
        yield busy.add(self._device.total * NS)
        yield _seconds("device_step", "Device begin to device end of a step").add_histogram(self._device)
        gap = _seconds("device_host_gap", "Device idle before a step although rows could have gone on")
        yield gap.add_histogram(self._host_gap)
        yield _seconds("step", "Planned to applied of a step").add_histogram(self._whole)
        rows = Family("stageline_step_rows", "histogram", "Sequences in a step")
        yield rows.add_histogram(self._rows, scale=1)
        tokens = Family("stageline_step_tokens", "histogram", "Tokens computed in a step")
        yield tokens.add_histogram(self.tokens, scale=1)
        computed = Family("stageline_computed_tokens_total", "counter", "Tokens computed in steps")
        computed.add(self._num_prefill_tokens, kind="prefill")
        yield computed.add(self._num_decode_tokens, kind="decode")
        if self.device is not None:
            share = _fragmentation(self._last, self.device.block_size) if num_used_blocks else 0.0
            name, text = "stageline_kv_fragmentation_ratio", "Slots of used blocks without a token"
            yield Family(name, "gauge", text).add(share)


def _seconds(name: str, text: str) -> Family:
    return Family(f"stageline_{name}_seconds", "histogram", text)


def _fragmentation(last: StepRecord | None, block_size: int) -> float:
    """The share of the used blocks' slots that hold no token, when the step was planned."""
    if last is None or not last.num_used_blocks:
        return 0.0
    num_held = last.num_kv_tokens - last.num_shared_tokens
    return 1 - num_held / (last.num_used_blocks * block_size)
