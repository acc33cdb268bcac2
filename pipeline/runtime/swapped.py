"""Swapped: how a swap may go (`Bounds`), and how it went."""

from enum import StrEnum

import msgspec

from pipeline.errors import SwapRefused


class Bounds(msgspec.Struct, frozen=True):
    """How long things may take, in seconds."""

    start_s: float = 10.0
    """start() of a newcomer, beside the stage that serves,"""
    computing_s: float = 0.5
    """of which it may hold the loop for so long at a stretch; as may a state that moves."""
    boundary_s: float = 5.0
    """Until a stage that is alone has finished the batch in its hands: it takes no other meanwhile anyway."""
    pool_boundary_s: float = 0.3
    """The same of a pool, whose others wait for the last one."""
    drain_s: float = 30.0
    """Until a stage of another State knows nothing any more. Requests that come meanwhile wait."""
    batch_s: float = 0.4
    """A batch on trial."""
    trial_s: float = 1.0
    """After so long and `trial_batches` the newcomers are trusted,"""
    trial_batches: int = 16
    max_trial_s: float = 3.0
    """or after so long, if there is less to do."""


USUAL = Bounds()


class Ending(StrEnum):
    REFUSED = "refused"
    """The stage that served before never ceased to."""
    ROLLED_BACK = "rolled_back"
    SWAPPED = "swapped"


class Swapped(msgspec.Struct, frozen=True):
    """How it ended."""

    ending: Ending
    reason: str = ""
    """Why the stage that served before still does."""
    paused_ns: int = 0
    """For so long nobody took from the inbox when the stage was handed over."""
    num_batches: int = 0
    """Handled on trial without a fault."""


def reason_of(error: BaseException) -> str:
    """In words, whatever was raised."""
    if isinstance(error, SwapRefused | TimeoutError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
