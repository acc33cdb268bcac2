"""What is asked of a recording, and how it stands."""

from pathlib import Path
from typing import NamedTuple

import msgspec


class Bounds(msgspec.Struct, frozen=True):
    max_bytes: int
    max_s: float


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A recording that is asked for. None: as far as the configuration lets it."""

    link: str
    max_bytes: int | None = None
    max_s: float | None = None
    is_redacted: bool = True


class Rules(NamedTuple):
    """What the configuration says of all recordings."""

    folder: Path
    bounds: Bounds
    """Of each."""
    is_redacted: bool
    """Prompts never get into a file."""
    from_start: tuple[str, ...] = ()
    """Links that are recorded from the start on."""


class State(msgspec.Struct, frozen=True):
    """How a recording stands."""

    id: str
    """Its file's name."""
    link: str
    is_redacted: bool
    begun_at: str
    seconds: float
    num_bytes: int
    num_messages: int
    num_lost: int
    bounds: Bounds
    ended: str
    """Why; empty: it goes on."""
