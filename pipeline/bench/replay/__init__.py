"""Replay: a recording of what one stage took, given to it, or to another in its place, on a stand."""

from pathlib import Path

from pipeline.bench.replay.anew import Change, unchanged
from pipeline.bench.replay.device import DeviceReplay
from pipeline.bench.replay.messages import Messages
from pipeline.bench.replay.pace import MAX, RECORDED, Pace
from pipeline.bench.replay.plans import PlansReplay
from pipeline.bench.replay.recorded_device import OF_ITSELF
from pipeline.errors import StagelineError
from pipeline.messages import StepHandle, StepPlan
from pipeline.messages.recorded import SCHEMA, decode
from pipeline.messages.stand_ins import RecordedStep
from pipeline.runtime.recording import Recording, read
from pipeline.topology import Graph

Replay = Messages | DeviceReplay | PlansReplay
"""Each a Feed with `num_messages`: how many `send` can be asked for, all together."""

__all__ = [
    "MAX",
    "RECORDED",
    "DeviceReplay",
    "Pace",
    "PlansReplay",
    "Replay",
    "read_recording",
    "replay_feed",
]


def read_recording(path: Path) -> Recording:
    """Raises StagelineError that names the file."""
    recording = read(path, decode, SCHEMA)
    if not recording.entries:
        raise StagelineError(f"{path}: holds no messages")
    return recording


def replay_feed(
    recording: Recording, stage: str, graph: Graph, pace: Pace, change: Change = unchanged
) -> Replay:
    """The feed of a recording for the stage in this place of the graph, whatever its class.

    Who gives steps to a device, or runs them, is answered (closed loop); every other stage is sent what was
    recorded (open loop). A recording may be replayed any number of times: what is sent are copies. Raises
    StagelineError where it holds what no link leads there.

    Args:
        change: called with each copy but a plan, just before it is sent; what it gives is sent.
    """
    takes = {link.carries for link in graph.links if link.target == stage}
    gives = {link.carries for link in graph.links if link.source == stage}
    _check_taken(recording, stage, takes)
    if StepPlan in gives:
        return DeviceReplay(recording, pace, change)
    if StepPlan in takes and StepHandle in gives:
        return PlansReplay(recording, pace)
    return Messages(recording, pace, change)


def _check_taken(recording: Recording, stage: str, takes: set[type]) -> None:
    kinds = {
        StepHandle if isinstance(each.message, RecordedStep) else type(each.message)
        for each in recording.entries
    }
    if others := kinds - takes - OF_ITSELF:
        names = ", ".join(sorted(kind.__name__ for kind in others))
        links = ", ".join(recording.header.links)
        raise StagelineError(f"the recording of {links} holds {names}, which no link leads to {stage}")
