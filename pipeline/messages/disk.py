"""What is said about KV blocks on disk."""

from typing import NamedTuple

import msgspec


class Shelved(NamedTuple):
    """A block on disk: where, and whose content it is (core.prefix.Link)."""

    shelf: int
    is_first: bool
    """Of its chain."""
    parent: bytes
    tokens: bytes
    key: bytes


class DiskReady(msgspec.Struct, frozen=True, gc=False):
    """What the disk can hold, and what an earlier process has left there."""

    num_shelves: int
    """One block each."""
    keeps: bool = False
    """What is there at the end will be there at the next start."""
    secret: bytes = b""
    """Of the keys of what it keeps; to be told to nobody."""
    kept: tuple[Shelved, ...] = ()
    """Those written last come last."""
    num_corrupt: int = 0
    """Left by an earlier process, and not as it was written."""

    def __repr__(self) -> str:
        return f"DiskReady({self.num_shelves}, {self.keeps}, {len(self.kept)} kept)"


class DiskMove(NamedTuple):
    """One block between a place in host memory and a shelf on disk; the other fields are Shelved's."""

    move_id: int
    place: int
    shelf: int
    is_fetch: bool
    """From the shelf to the place; else the other way."""
    is_first: bool
    parent: bytes
    tokens: bytes
    key: bytes


class DiskMoves(msgspec.Struct, frozen=True, gc=False):
    """schedule -> execute, control lane: made in this order, beside the steps.

    Until they are answered, no step writes to their places; nor reads those that they write to.
    """

    moves: list[DiskMove]


class DiskMoved(msgspec.Struct, frozen=True, gc=False):
    """execute -> schedule, control lane: the answer to one DiskMoves."""

    move_ids: list[int]
    are_good: list[bool]
    """False: what is at its target is of no use."""
    fetch_ns: int
    """What those to host memory took, together."""
    fault: str = ""
    """Why the disk can be used no more; empty: it can."""
