"""Options of the schedule stage, and which of them can change while it serves."""

from typing import Annotated, Literal

import msgspec

from pipeline.core.policies import SchedulingOptions
from pipeline.errors import ConfigError
from pipeline.topology import CREDITS

FIXED = (
    "separation",
    "allocation",
    "prefix_cache",
    "max_pinned_blocks",
    "kv_events",
    "batching",
    "pad_to",
)
"""What the blocks that are held, and the workers that run, were laid out for."""


class ScheduleOptions(SchedulingOptions, frozen=True, forbid_unknown_fields=True):
    credits: Annotated[int, msgspec.Meta(ge=1, le=8)] = CREDITS
    """Steps in flight at once, of each device worker."""
    separation: Literal["mixed", "split"] = "mixed"
    """split: one device worker for prefill and one for decode, at the same time, instead of one for both."""
    max_waiting: Annotated[int, msgspec.Meta(ge=1)] = 256
    """Requests that wait for the device; past it they stay in the inbox and hold the pipeline back."""
    prefix_cache: bool = True
    """Whether requests that begin with the same tokens share the KV of these; docs/kv.md."""
    max_pinned_blocks: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Blocks that requests with `cache_pin` may keep cached; 0: none may; docs/kv.md."""
    kv_events: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many events of the prefix cache are kept for routers that subscribe; 0: none are told. They show
    the token ids of prompts to whoever reaches the admin port; docs/kv-events.md."""


def check_change(was: ScheduleOptions, now: ScheduleOptions) -> None:
    """Raises ConfigError, naming the key, if one cannot follow the other while requests are served."""
    names = FIXED if was.batching == "continuous" else (*FIXED, "gather_ms")
    for name in names:
        old, new = getattr(was, name), getattr(now, name)
        if old != new:
            raise ConfigError(
                f"stages.schedule.options.{name} = {new!r}: must stay {old!r} while the server runs; what it "
                "decides is laid out at start"
            )
