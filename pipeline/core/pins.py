"""Pins: the order in which a pool takes blocks that are kept and held by nobody, the pinned ones last.

A pin ranks cached blocks among themselves, not above requests: pinned blocks are free as all cached ones are,
so nobody waits, is refused or preempted because of them. They are taken when no other block is free.
"""

from collections import OrderedDict
from typing import Protocol


class IdleOrder(Protocol):
    """What BlockPool keeps idle blocks in, an OrderedDict or Pins: what is put in first comes out first."""

    def __len__(self) -> int: ...

    def __contains__(self, block: object, /) -> bool: ...

    def __setitem__(self, block: int, value: None, /) -> None: ...

    def __delitem__(self, block: int, /) -> None: ...

    def popitem(self, last: bool = True) -> tuple[int, None]: ...

    def move_to_end(self, block: int, last: bool = True) -> None: ...


class Pins:
    """At most `max_blocks` are pinned; past it, those that were asked for longest ago are no longer.

    Invariant: a pinned block's parent is pinned, and is released and taken after it. So no chain gets a hole.
    """

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.num_released = 0
        """Because of the bound, so far; and"""
        self.num_taken = 0
        """because no other block was free."""
        self._pinned: OrderedDict[int, None] = OrderedDict()
        """Longest ago first, children before parents."""
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._idle_pinned: OrderedDict[int, None] = OrderedDict()

    @property
    def num_pinned(self) -> int:
        return len(self._pinned)

    def pin(self, blocks: list[int]) -> None:
        """Of a chain from its first block on, all held: the first `max_blocks` of them, anew if they are."""
        for block in reversed(blocks[: self.max_blocks]):
            self._pinned[block] = None
            self._pinned.move_to_end(block)
        while len(self._pinned) > self.max_blocks:
            self.num_released += 1
            self._release(next(iter(self._pinned)))

    def clear(self) -> None:
        """Nothing is pinned any more; what is cached stays so."""
        while self._pinned:
            self._release(next(iter(self._pinned)))

    def forget(self) -> None:
        """The pool is gone, and every block with it."""
        self._pinned.clear()
        self._idle.clear()
        self._idle_pinned.clear()

    def gauges(self) -> dict[str, float]:
        return {
            "kv_blocks_pinned": self.num_pinned,
            "kv_pins_released_total": self.num_released,
            "kv_pins_taken_total": self.num_taken,
        }

    def _release(self, block: int) -> None:
        del self._pinned[block]
        if block in self._idle_pinned:
            del self._idle_pinned[block]
            self._idle[block] = None

    # IdleOrder ------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._idle) + len(self._idle_pinned)

    def __contains__(self, block: object) -> bool:
        return block in self._idle or block in self._idle_pinned

    def __setitem__(self, block: int, value: None) -> None:
        self._order_of(block)[block] = value

    def __delitem__(self, block: int) -> None:
        del self._order_of(block)[block]

    def popitem(self, last: bool = True) -> tuple[int, None]:
        if self._idle:
            return self._idle.popitem(last)
        block, _ = self._idle_pinned.popitem(last)
        self.num_taken += 1
        del self._pinned[block]
        return block, None

    def move_to_end(self, block: int, last: bool = True) -> None:
        self._order_of(block).move_to_end(block, last)

    def _order_of(self, block: int) -> "OrderedDict[int, None]":
        return self._idle_pinned if block in self._pinned else self._idle
