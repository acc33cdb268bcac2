"""Every message that crosses a link, grouped by what it is counted in. No behaviour here.

Ids and times (`_ns`) are ints.
"""

from pipeline.messages.disk import (
    DiskMove,
    DiskMoved,
    DiskMoves,
    DiskReady,
    Shelved,
)
from pipeline.messages.parts import (
    NO_TOKEN,
    SEGMENTS,
    STEP_SEGMENTS,
    FinishReason,
    Message,
)
from pipeline.messages.requests import (
    Cancel,
    ChatMessage,
    ClearPins,
    ClientSink,
    Completion,
    DeviceReady,
    GenerateRequest,
    Open,
    Pause,
    Rejected,
    Resume,
    Room,
    Terms,
    Timings,
    TokenizedRequest,
    Wake,
)
from pipeline.messages.sampling import (
    SamplingParams,
)
from pipeline.messages.steps import (
    Admitted,
    DropQuestion,
    SampledBatch,
    SequenceTimes,
    Started,
    StepHandle,
    StepPlan,
    TextBatch,
    TokenBatch,
)

__all__ = [
    "NO_TOKEN",
    "SEGMENTS",
    "STEP_SEGMENTS",
    "Admitted",
    "Cancel",
    "ChatMessage",
    "ClearPins",
    "ClientSink",
    "Completion",
    "DeviceReady",
    "DiskMove",
    "DiskMoved",
    "DiskMoves",
    "DiskReady",
    "DropQuestion",
    "FinishReason",
    "GenerateRequest",
    "Message",
    "Open",
    "Pause",
    "Rejected",
    "Resume",
    "Room",
    "SampledBatch",
    "SamplingParams",
    "SequenceTimes",
    "Shelved",
    "Started",
    "StepHandle",
    "StepPlan",
    "Terms",
    "TextBatch",
    "Timings",
    "TokenBatch",
    "TokenizedRequest",
    "Wake",
]
