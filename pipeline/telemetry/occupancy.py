"""Occupancy: what the scheduler holds at this moment. Read when somebody looks; else it costs nothing."""

import msgspec

BLOCK_FREE = 0
BLOCK_OWNED = 1
BLOCK_CACHED = 2
"""Free as well, but what is in it may still be found."""
BLOCK_SHARED = 3
"""Owned by several sequences."""


class Occupancy(msgspec.Struct, frozen=True, gc=False):
    num_running: int
    """Sequences with a device slot."""
    num_waiting: int
    blocks: bytes
    """One byte a KV block, in the order of their ids: one of the above."""
    is_stepping: bool = False
    """A step is on the device."""
