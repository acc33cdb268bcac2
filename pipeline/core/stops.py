"""Stop strings: where a text ends, holding back as little of it as can be.

Several stops: the one that is complete first ends the text, and of those complete at the same character
the one that begins first. So the result is the same however the text is cut into pieces.
"""

from collections.abc import Sequence


class StopMatcher:
    """Watches one text for its stop strings.

    Held back is only the longest end of the text that begins a stop string.

    Args:
        stops: at least one, none empty.
        includes_stop: the text ends after the stop string, not before it.
        held: text before that may be the beginning of a stop string, and was not shown.
    """

    __slots__ = ("_firsts", "_held", "_includes_stop", "_stops", "is_stopped")

    def __init__(self, stops: Sequence[str], *, includes_stop: bool = False, held: str = "") -> None:
        if not stops or not all(stops):
            raise ValueError("stop strings must not be empty")
        self._stops = tuple(stops)
        self._includes_stop = includes_stop
        self._firsts = frozenset(stop[0] for stop in stops)
        self._held = held
        self.is_stopped = False
        """A stop string was found: `push` has returned the last of the text."""

    @property
    def held(self) -> str:
        """May be the beginning of a stop string."""
        return self._held

    @property
    def num_unwatched(self) -> int:
        """So many pushes to come pass, whatever is in them."""
        return 0

    def push(self, text: str) -> str:
        """What may be shown now. It ends before the stop string when one is found."""
        if not self._held and self._firsts.isdisjoint(text):
            return text  # most of the time: nothing held, and no stop string begins here
        text = self._held + text
        end = self._find(text)
        if end >= 0:
            self.is_stopped, self._held = True, ""
            return text[:end]
        keep = self._held_from(text)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """The text ended without a stop string: what was held back."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> int:
        """Where the text ends, or -1."""
        best = (len(text) + 1, -1)  # end of the match, its begin
        for stop in self._stops:
            begin = text.find(stop)
            if begin >= 0:
                best = min(best, (begin + len(stop), begin))
        return best[0] if self._includes_stop and best[1] >= 0 else best[1]

    def _held_from(self, text: str) -> int:
        """Where the longest suffix begins that is the beginning of a stop string."""
        keep = len(text)
        for stop in self._stops:
            first = stop[0]
            begin = text.find(first, max(0, len(text) - len(stop) + 1), keep)
            while begin >= 0:
                if stop.startswith(text[begin:]):
                    keep = begin
                    break
                begin = text.find(first, begin + 1, keep)
        return keep


class LateStopMatcher(StopMatcher):
    """One that lets the text of the first `num_tokens` pushes pass, whatever is in it."""

    __slots__ = ("_num_left",)

    def __init__(self, stops: Sequence[str], num_tokens: int, *, includes_stop: bool = False) -> None:
        super().__init__(stops, includes_stop=includes_stop)
        self._num_left = num_tokens

    @property
    def num_unwatched(self) -> int:
        return self._num_left

    def push(self, text: str) -> str:
        if self._num_left:
            self._num_left -= 1
            return text
        return super().push(text)
