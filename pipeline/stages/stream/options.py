"""Options of the stream stage: how text is merged, and how long who does not take it is waited for."""

from typing import Annotated

import msgspec
from msgspec import Meta


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[stages.stream.options] of config.toml."""

    flush_tokens: Annotated[int, Meta(ge=1)] = 16
    """A client is written to when this many tokens are pending,"""
    flush_ms: Annotated[float, Meta(ge=0, le=1000)] = 20.0
    """or this long after its last write, whichever is first."""
    client_buffer_bytes: Annotated[int, Meta(ge=1024)] = 256 * 1024
    """Bytes that may wait for one client's socket; past it, its request is paused."""
    slow_client_s: Annotated[float, Meta(gt=0)] = 10.0
    """How long a client may leave its buffer full before its request is cancelled."""
    max_paused_s: Annotated[float, Meta(gt=0)] = 60.0
    """How long a request whose credit is spent waits for more before it is cancelled."""
