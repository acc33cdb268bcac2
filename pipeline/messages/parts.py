"""What all messages share: their base, how a request ends, the segments of its life."""

from enum import IntEnum
from typing import Literal

import msgspec

NO_TOKEN = -1
"""TokenBatch: the row ends its sequence without a token. StepPlan: the input token is still on the device."""

SEGMENTS = (
    "ingress.service",
    "tokenize.wait",
    "tokenize.service",
    "schedule.wait",
    "schedule.service",
    "execute.wait",
    "execute.service",
    "sample.wait",
    "sample.service",
    "detokenize.wait",
    "detokenize.service",
    "stream.wait",
    "stream.service",
)
"""The parts of a request's life, in order; together they are its end-to-end time."""

STEP_SEGMENTS = slice(3, 9)
"""The part of SEGMENTS that is spent on the step cycle and accounted per step (core.timeline)."""


Pooling = Literal["", "last", "mean"]
"""Of which tokens' hidden states a request's embedding is made; empty: it generates text instead."""


class FinishReason(IntEnum):
    NONE = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    ERROR = 4
    FILTERED = 5
    """A rule of the content filter ended it."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """Base of all messages; gc=False because a message never refers back to what holds it."""
