"""Company: stages of one server replayed side by side on one loop and one clock, each from its recording.

A stage that is replayed alone is woken on a core that nobody has just worked on; in the server its neighbours
have, with the same code and the same caches. So here each has the neighbours that it had, at the times at
which they worked. They still give one another nothing: each is fed from its recording, into its own sinks.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns

import uvloop

from pipeline.bench.alone import Alone
from pipeline.bench.replay import Pace, read_recording
from pipeline.bench.replay.alarm import Alarm
from pipeline.bench.result import StageResult
from pipeline.bench.sources import blueprint_for, of_recording
from pipeline.bench.stand import is_door
from pipeline.errors import StagelineError
from pipeline.messages import GenerateRequest
from pipeline.runtime.recording import Recording
from pipeline.topology import Graph

_LEAD_NS = 1_000_000_000
"""From when all run to the begin of the first recording: what a feed needs is made meanwhile."""
_TRACE_POINTS = 1 << 18
"""Of each."""


@dataclass(frozen=True)
class Company:
    """Each of another stage; recorded at the same time."""

    members: Sequence[Alone]

    def measure(self, rate: str) -> dict[str, StageResult]:
        """By stage. Raises StageCrashed.

        Args:
            rate: `recorded` or a factor.
        """
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
            return loop.run(self._measured(rate))

    async def _measured(self, rate: str) -> dict[str, StageResult]:
        try:
            with Alarm() as alarm:
                shared = _SharedTime(self.members)
                async with asyncio.TaskGroup() as group:
                    tasks = {
                        member.stage: group.create_task(_measure(member, rate, alarm, shared))
                        for member in self.members
                    }
        except* StagelineError as faults:
            raise faults.exceptions[0]  # noqa: B904 - it keeps its own __cause__
        return {stage: task.result() for stage, task in tasks.items()}


async def _measure(member: Alone, rate: str, alarm: Alarm, shared: "_SharedTime") -> StageResult:
    pace = Pace.of(rate, alarm.call_later)
    stand = member.stand(trace_points=_TRACE_POINTS)
    return await member.measured(pace, rate, stand, among=shared.by(pace, member.begun_ns))


class _SharedTime:
    """From when all stages run to when the last one is measured: no beginning or end disturbs the others."""

    def __init__(self, members: Sequence[Alone]) -> None:
        self._barrier = asyncio.Barrier(len(members))
        self._first_ns = min(member.begun_ns for member in members)
        self._begin_ns: int | None = None

    @asynccontextmanager
    async def by(self, pace: Pace, begun_ns: int) -> AsyncIterator[None]:
        """For one whose recording began then, and goes by this pace."""
        await self._barrier.wait()
        if self._begin_ns is None:
            self._begin_ns = perf_counter_ns() + _LEAD_NS
        pace.share(self._begin_ns + pace.scaled(begun_ns - self._first_ns))
        yield
        await self._barrier.wait()


def beside(alone: Alone, recording: Recording, folder: Path, *, fake_step_ms: float | None) -> Company:
    """`alone`, and all other stages of which there is a recording in the folder, the door included.

    Raises StagelineError: there is none, or one was made at another time, or two are of one stage.

    Args:
        recording: that of `alone`.
    """
    members = [alone]
    for stage, other in _recordings(folder, alone.blueprint.graph).items():
        if stage != alone.stage:
            _check_time(stage, other, alone.stage, recording)
            blueprint = blueprint_for(alone.blueprint.config, stage)
            members.append(of_recording(blueprint, stage, alone.card, other, fake_step_ms=fake_step_ms))
    if len(members) == 1:
        raise StagelineError(f"{folder}: holds no recording (*.rec) of another stage than {alone.stage}")
    return Company(members)


def _recordings(folder: Path, graph: Graph) -> dict[str, Recording]:
    """By stage; of the door, which is sent nothing, that of the stage behind it."""
    found: dict[str, Recording] = {}
    for path in sorted(folder.glob("*.rec")):
        recording = read_recording(path)
        if recording.header.stage in found:
            raise StagelineError(f"{path}: is the second recording of {recording.header.stage} there")
        found[recording.header.stage] = recording
    for door in (name for name in graph.names if is_door(graph, name)):
        behind = [link.target for link in graph.links if link.source == door and link.target in found]
        asked = [name for name in behind if _has_requests(found[name])]
        if asked:
            found[door] = found[asked[0]]
    return found


def _has_requests(recording: Recording) -> bool:
    return any(isinstance(entry.message, GenerateRequest) for entry in recording.entries)


def _check_time(stage: str, recording: Recording, other: str, beside: Recording) -> None:
    """Some of their time must be the same."""
    spans = [
        (each.header.begin_ns, each.header.begin_ns + max(entry.taken_ns for entry in each.entries))
        for each in (recording, beside)
    ]
    (begin_ns, end_ns), (other_begin_ns, other_end_ns) = spans
    if begin_ns >= other_end_ns or other_begin_ns >= end_ns:
        raise StagelineError(f"the recordings of {stage} and {other} were not made at the same time")
