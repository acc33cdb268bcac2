"""What a row may read of its context, cell by cell: what testing.CheckingRunner knows of a slot."""

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.messages import Admitted


class Cell(NamedTuple):
    """What the KV of one position was computed from."""

    position: int
    token_id: int
    history: int
    """Stands for all tokens that this one could see, itself included; 0: not known yet."""


class Context:
    """One slot's: its block table, what was dropped, and what its sequence may see.

    Args:
        admitted: None: nobody's yet.
    """

    def __init__(self, block_size: int, admitted: Admitted | None = None) -> None:
        self.table: dict[int, int] = {}
        self.num_dropped = admitted.num_dropped if admitted else 0
        self.named: set[int] = set()
        """Blocks that the device has named for dropping and that are still in the table."""
        self._sinks = admitted.sinks if admitted else 0
        self._window = admitted.window if admitted else 0
        self._is_weighed = bool(admitted and admitted.is_weighed)
        self._block_size = block_size

    def place(self, entry: int) -> tuple[int, int]:
        """Block and offset of an entry."""
        return self.table[entry // self._block_size], entry % self._block_size

    def drop(self, column: int) -> None:
        """It is taken out of the table; somebody else may have written to its block already."""
        assert self._window or self._is_weighed, "a sequence that keeps all loses a block"
        if self._is_weighed:
            self.named.remove(self.table[column])  # KeyError: the device did not name it
        blocks = [block for _, block in sorted(self.table.items())]
        del blocks[column]
        self.table = dict(enumerate(blocks))
        self.num_dropped += self._block_size

    def check_places(self, cells: Sequence[Cell]) -> None:
        """Whole blocks of ascending positions; as many are missing as were dropped."""
        before = -1
        for entry, cell in enumerate(cells):
            offset = entry % self._block_size
            assert cell.position == before + 1 if offset else cell.position > before, f"entry {entry}: {cell}"
            assert cell.position % self._block_size == offset, f"entry {entry}: {cell}"
            before = cell.position
        assert before + 1 == len(cells) + self.num_dropped, f"{before}, {self.num_dropped} dropped"

    def sees_all(self, entry: int, cell: Cell) -> bool:
        """Nothing before it has been dropped, and it sees that."""
        return cell.position == entry and not (self._window and entry >= self._sinks + self._window)

    def seen(self, cells: Sequence[Cell]) -> tuple[tuple[int, int], ...]:
        """Of the entries up to a query's own those that it sees, position and token: all it was promised."""
        own = cells[-1].position
        seen = list(cells)
        if self._window:
            seen[self._sinks : -self._window] = []
            promised = [*range(self._sinks), *range(own + 1 - self._window, own + 1)]
            assert [cell.position for cell in seen] == promised, "what it should see was dropped"
        else:
            assert self._is_weighed, "something was dropped"
        return tuple((cell.position, cell.token_id) for cell in seen)
