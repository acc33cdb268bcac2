"""Messages of a recording, made anew to be sent: fresh, as if their sender had just made them.

Stages own what they are given, and change it; and a message that was made long ago lies in no cache any more:
the stage would pay for that, though in a server it does not.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from pipeline.messages import (
    GenerateRequest,
    Open,
    SampledBatch,
    StepPlan,
    TextBatch,
    TokenBatch,
    TokenizedRequest,
)
from pipeline.messages.recorded import decode, encode, kind_of
from pipeline.messages.stand_ins import RecordedStep

MOMENTS: dict[type, tuple[str, ...]] = {
    GenerateRequest: ("arrived_ns", "sent_ns"),
    TokenizedRequest: ("arrived_ns", "sent_ns"),
    Open: ("arrived_ns",),
    StepPlan: ("planned_ns",),
    RecordedStep: ("begin_ns", "end_ns"),
    TokenBatch: ("sent_ns",),
    TextBatch: ("token_sent_ns", "taken_ns", "sent_ns"),
}
"""Fields that hold a time of the clock."""


Change = Callable[[Any], Any]
"""Of each copy, just before it is sent: what is sent."""


def unchanged(message: Any) -> Any:
    return message


def anew(message: Any, by_ns: int) -> Any:
    """A copy, whose times are so much later."""
    copy = decode(kind_of(message), encode(message))
    if isinstance(copy, SampledBatch):
        planned, begin, end, taken, sampled = (at_ns + by_ns for at_ns in copy.times_ns)
        return replace(copy, times_ns=(planned, begin, end, taken, sampled))
    if isinstance(copy, RecordedStep):
        copy = replace(copy, plan=replace(copy.plan, planned_ns=copy.plan.planned_ns + by_ns))
    moved = {name: getattr(copy, name) + by_ns for name in MOMENTS.get(type(copy), ())}
    return replace(copy, **moved) if moved else copy


def num_rows_of(message: Any) -> int:
    """Rows of a step's message; a request to be tokenized or scheduled is one."""
    if isinstance(message, TextBatch | TokenBatch | SampledBatch):
        return len(message.request_ids)
    if isinstance(message, StepPlan):
        return len(message.slots)
    if isinstance(message, RecordedStep):
        return len(message.plan.slots)
    return int(isinstance(message, GenerateRequest | TokenizedRequest))
