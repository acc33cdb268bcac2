"""What a recording of schedule's inbox says of the device: what it held, answered, and how long that took."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from pipeline.messages import (
    Cancel,
    ClearPins,
    DeviceLost,
    DeviceReady,
    DiskMoved,
    Room,
    SampledBatch,
    TokenizedRequest,
    Wake,
)
from pipeline.messages.recorded import decode
from pipeline.runtime.recording import Entry, Recording

_OF_THE_DEVICE = (SampledBatch, DeviceReady, DeviceLost, DiskMoved)
OF_ITSELF = {Room, Wake, ClearPins}
"""What schedule is told by itself, which comes again, and by the admin port: no link carries them."""


class Lag(NamedTuple):
    """Where the time of one step went, ns."""

    launch_ns: int
    """From when it was planned, and the step before it done, to its begin."""
    device_ns: int
    return_ns: int
    """From its end to schedule's inbox."""

    @classmethod
    def of(cls, step: SampledBatch, sent_ns: int, device_end_ns: int) -> "Lag":
        planned_ns, begin_ns, end_ns, _, _ = step.times_ns
        return cls(
            max(0, begin_ns - max(planned_ns, device_end_ns)),
            max(0, end_ns - begin_ns),
            max(0, sent_ns - end_ns),
        )


class RecordedDevice:
    """The tokens of each request, and the lag of each step, in their order."""

    def __init__(self, recording: Recording) -> None:
        entries = recording.entries
        self.ready = _ready(recording)
        self.lags = list(_lags(entries, recording.header.begin_ns))
        self.sent_ns = [entry.at_ns for entry in entries if isinstance(entry.message, SampledBatch)]
        """When each step came back, since the recording's begin, and"""
        begin_ns = recording.header.begin_ns
        self.planned_ns = [
            entry.message.times_ns[0] - begin_ns
            for entry in entries
            if isinstance(entry.message, SampledBatch)
        ]
        """when it was planned."""
        self.token_ids: dict[int, list[int]] = {}
        """By request."""
        self.embeddings: dict[int, bytes] = {}
        self.cancels: dict[int, Cancel] = {}
        """Those of requests that had tokens: they come with the last of these, whenever that is."""
        for entry in entries:
            if isinstance(entry.message, SampledBatch):
                self._note(entry.message)
            elif isinstance(entry.message, Cancel) and entry.message.request_id in self.token_ids:
                self.cancels.setdefault(entry.message.request_id, entry.message)

    def _note(self, step: SampledBatch) -> None:
        for request_id, token_id in zip(step.request_ids, step.token_ids, strict=True):
            self.token_ids.setdefault(request_id, []).append(token_id)
        for row in step.pooled:
            self.embeddings[row.request_id] = row.embedding

    def since_first_ns(self, num_steps: int) -> int:
        """From the first result to that of step `num_steps`, as recorded."""
        return self.sent_ns[min(num_steps, len(self.sent_ns)) - 1] - self.sent_ns[0]

    def arrivals(self, entries: Iterable[Entry]) -> list[Entry]:
        """What others than the device have sent, in order of time. Who was cancelled before its first token
        is so again at its time.
        """
        others = [
            entry
            for entry in entries
            if not isinstance(entry.message, (*_OF_THE_DEVICE, Room, Wake))
            and not (isinstance(entry.message, Cancel) and entry.message.request_id in self.cancels)
        ]
        return sorted(others, key=lambda entry: entry.at_ns)


def _lags(entries: Iterable[Entry], begin_ns: int) -> Iterator[Lag]:
    device_end_ns = 0
    for entry in entries:
        if isinstance(step := entry.message, SampledBatch):
            yield Lag.of(step, begin_ns + entry.at_ns, device_end_ns)
            device_end_ns = step.times_ns[2]


def _ready(recording: Recording) -> DeviceReady:
    """As it was told when the server began, or when the recording did. Its disk is left out."""
    told = [entry.message for entry in recording.entries if isinstance(entry.message, DeviceReady)]
    if told:
        return replace(told[0], disk=None)
    if recording.header.device:
        ready: DeviceReady = decode("DeviceReady", recording.header.device)
        return replace(ready, disk=None)
    return _roomy(recording)


def _roomy(recording: Recording) -> DeviceReady:
    """On which nobody of the recording waits: nothing says what there was."""
    requests = [each.message for each in recording.entries if isinstance(each.message, TokenizedRequest)]
    num_tokens = sum(len(each.token_ids) + (each.sampling.max_tokens or 0) + 16 for each in requests)
    num_seqs = max(1, len(requests))
    return DeviceReady(
        num_blocks=num_tokens // 16 + 1,
        block_size=16,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=2048 + num_seqs,
    )
