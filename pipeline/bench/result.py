"""What a bench of one stage has found. docs/stages.md says what the figures mean."""

import msgspec
from msgspec.structs import asdict


class Queue(msgspec.Struct, frozen=True):
    """How messages waited in the stage's inbox, both lanes."""

    wait_p50_us: float
    wait_p99_us: float
    mean_depth: float
    """Over the time,"""
    peaks: list[int]
    """and the most that waited at once in each of equal parts of it."""


class Allocations(msgspec.Struct, frozen=True):
    """Medians over calls of handle(), by a pass of its own that is not timed."""

    batches: int
    peak_bytes: float
    """Over what there was when the call began: what it needs for a while,"""
    kept_bytes: float
    """and what is left of that when it returns: messages it has sent included."""
    kept_blocks: float
    """The same as pieces of memory; sys.getallocatedblocks."""
    messages: float
    """In a batch."""


class StageResult(msgspec.Struct, frozen=True):
    """What so many messages have cost. Times are those of handle(), of execute of the device's steps."""

    stage: str
    use: str
    workers: int
    rate: str
    messages: int
    rows: int
    batches: int
    """Calls of handle()."""
    p50_us: float
    """Per message."""
    p99_us: float
    busy_s: float
    """Of all workers together."""
    handled_s: float
    """The time in handle(), of all workers together. The same as busy_s but for execute, and"""
    handled_p50_us: float
    """per message."""
    wakeups: int
    seconds: float
    """Of the clock, source and sinks included."""
    recorded_s: float = 0.0
    """In which the same messages came when they were recorded; 0: they are samples."""
    rows_left_out: int = 0
    """Of requests whose beginning is not in the recording; not among `rows`."""
    at_rows_per_s: float | None = None
    """What is asked of it, if that was said."""
    queue: Queue | None = None
    allocations: Allocations | None = None

    @property
    def us_per_message(self) -> float:
        return self.busy_s / self.messages * 1e6

    @property
    def us_per_row(self) -> float | None:
        """None: no message of it has rows."""
        return self.busy_s / self.rows * 1e6 if self.rows else None

    @property
    def messages_per_s(self) -> float:
        """What the stage can do when it does nothing but this."""
        return self.messages * self.workers / self.busy_s

    @property
    def rows_per_s(self) -> float:
        return self.rows * self.workers / self.busy_s

    @property
    def utilization(self) -> float | None:
        """Share of their time that its workers would be busy with what is asked: `at_rows_per_s`, or as many
        messages a second as were recorded. None: neither is known.
        """
        if self.at_rows_per_s is not None:
            return self.at_rows_per_s / self.rows_per_s if self.rows else None
        return self.busy_s / self.workers / self.recorded_s if self.recorded_s else None

    def as_dict(self) -> dict[str, object]:
        """For JSON: the fields and what follows from them."""
        names = ("us_per_message", "us_per_row", "messages_per_s", "rows_per_s", "utilization")
        return asdict(self) | {name: getattr(self, name) for name in names}
