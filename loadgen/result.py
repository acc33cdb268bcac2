"""result.json: everything that the reports are made from, and all that is needed to compute it again."""

from pathlib import Path
from typing import Any

import msgspec

from loadgen.digest import Digest
from loadgen.errors import UsageError
from loadgen.machine import Machine
from loadgen.queues import QueueSample
from loadgen.record import Record
from loadgen.summary import Summary
from loadgen.traces import Trace
from loadgen.verify import Verification
from loadgen.workload import Workload

VERSION = 1


class TraceFacts(msgspec.Struct, frozen=True):
    """What became of the file's rows."""

    path: str
    format: str
    sha256: str
    rows_read: int
    rows_used: int
    rows_dropped: dict[str, int]
    rows_clamped_input: int
    rows_clamped_output: int
    notes: list[str]


class Result(msgspec.Struct, frozen=True):
    """One run. `requests` are in order of their index; on disk each has its metrics beside its times."""

    version: int
    started_at: str
    """ISO 8601, UTC."""
    config: dict[str, Any]
    """The options, with the served model; seeds among them."""
    machine: Machine
    trace: TraceFacts
    workload: Digest
    summary: Summary
    verification: Verification | None
    queues: list[QueueSample]
    requests: list[Record]


def trace_facts(trace: Trace, workload: Workload) -> TraceFacts:
    return TraceFacts(
        path=str(trace.path),
        format=trace.format,
        sha256=trace.sha256,
        rows_read=trace.num_read,
        rows_used=len(workload.jobs),
        rows_dropped=trace.dropped,
        rows_clamped_input=workload.num_clamped_input,
        rows_clamped_output=workload.num_clamped_output,
        notes=trace.notes,
    )


def encode(result: Result) -> bytes:
    """As JSON."""
    fields = msgspec.structs.asdict(result)
    return msgspec.json.encode(fields | {"requests": [record.as_dict() for record in result.requests]})


def read_result(path: Path) -> Result:
    """Raises UsageError if `path` is no result.json of this version."""
    try:
        result = msgspec.json.decode(path.read_bytes(), type=Result)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is no result.json of this loadgen: {error}") from error
    if result.version != VERSION:
        raise UsageError(f"{path}: is of version {result.version}; this loadgen reads {VERSION}")
    return result


def write(path: Path, content: bytes) -> None:
    """Written whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error
