"""Credit: how many more tokens a client takes of one request, and what waits until it takes more."""

from collections import deque


class Credit:
    """Rows of text pass in their order while any credit is left, each as a whole: a piece that several
    tokens made together may overdraw it, and the next grant pays that first. So whoever has credit left
    always gets the next piece, and nobody gets a second one on it.

    Args:
        num_tokens: granted at the beginning, above 0.
    """

    def __init__(self, num_tokens: int) -> None:
        self.left = num_tokens
        self.num_held = 0
        """Tokens of the rows that wait."""
        self._held: deque[tuple[str, int]] = deque()

    def copy(self) -> "Credit":
        other = Credit(self.left)
        other.num_held, other._held = self.num_held, self._held.copy()
        return other

    @property
    def is_spent(self) -> bool:
        return self.left <= 0

    @property
    def has_held(self) -> bool:
        return bool(self._held)

    def take(self, text: str, num_tokens: int) -> tuple[str, int]:
        """What of the next row may be written now: all of it, or nothing and it is held.

        Text that is of no new token goes with what was written before.
        """
        if self._held or (self.left <= 0 and num_tokens):
            self._held.append((text, num_tokens))
            self.num_held += num_tokens
            return "", 0
        self.left -= num_tokens
        return text, num_tokens

    def grant(self, num_tokens: int) -> tuple[str, int]:
        """So many more; what of the held rows may be written now."""
        self.left += num_tokens
        texts, num_released = [], 0
        while self._held and (self.left > 0 or not self._held[0][1]):
            text, count = self._held.popleft()
            texts.append(text)
            self.left -= count
            num_released += count
        self.num_held -= num_released
        return "".join(texts), num_released

    def discard(self) -> int:
        """Nobody will be told of what is held; how many tokens that were."""
        discarded, self.num_held = self.num_held, 0
        self._held.clear()
        return discarded
