"""Shelf: what a stage made at a cost that stops the loop, and whoever takes its place need not make again.

To read a tokenizer holds the interpreter lock for 100 ms at 49,000 tokens, whatever thread does it.
"""

from typing import Any, TypeVar

T = TypeVar("T")


class _Kept:
    """A thing, and by how many it is used."""

    def __init__(self, item: Any) -> None:
        self.item = item
        self.num_users = 1


class Shelf:
    """A resource. Things are used by turns: by who serves, and by who is to take his place. Single loop."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []

    def share(self, kind: type[T]) -> T | None:
        """One of this class, of which the fewest use the same; None: there is none."""
        kept = [each for each in self._kept if type(each.item) is kind]
        if not kept:
            return None
        least = min(kept, key=lambda each: each.num_users)
        least.num_users += 1
        item: T = least.item
        return item

    def keep(self, item: object) -> None:
        """It was made, and is used by who made it."""
        self._kept.append(_Kept(item))

    def leave(self, item: object) -> None:
        """One uses it no more; what nobody uses is forgotten."""
        for kept in self._kept:
            if kept.item is item:
                kept.num_users -= 1
        self._kept = [kept for kept in self._kept if kept.num_users]
