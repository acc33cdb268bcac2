"""Occupancy: what the scheduler holds at this moment. Read when somebody looks; else it costs nothing."""

import msgspec

BLOCK_FREE = 0
BLOCK_OWNED = 1


class Occupancy(msgspec.Struct, frozen=True, gc=False):
    num_running: int
    """Sequences with a device slot."""
    num_waiting: int
    blocks: bytes
    """One byte a KV block, in the order of their ids: BLOCK_FREE or BLOCK_OWNED."""
    is_stepping: bool = False
    """A step is on the device."""
