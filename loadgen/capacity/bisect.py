"""Where does a yes turn into a no? Pure: it is asked for the next rate and told what was found there."""

import math

MAX_HALVINGS = 10


class Search:
    """Doubles from `start` until a rate fails, then bisects; if `start` fails itself, it halves first.

    Middles are geometric, for a rate's precision is relative. What is asked for lies always inside the
    bracket, so that answers can be noisy but never contradict the bracket.

    Args:
        start: the first rate, over 0.
        precision: ends when `highest_failed` is at most this share above `highest_held`.
        ceiling: no rate above it is asked for; at least `start`.
    """

    def __init__(self, start: float, precision: float, ceiling: float = math.inf) -> None:
        self.held: float | None = None
        """The highest rate that held."""
        self.failed: float | None = None
        """The lowest rate that failed."""
        self._start = start
        self.precision = precision
        self._ceiling = ceiling

    def next_rate(self) -> float | None:
        """What to measure now; None at the end: the bracket is narrow enough, or cannot be narrowed."""
        if self.held is None:
            return self._lower()
        if self.failed is None:
            return min(2 * self.held, self._ceiling) if self.held < self._ceiling else None
        if self.failed <= self.held * (1 + self.precision):
            return None
        return math.sqrt(self.held * self.failed)

    def tell(self, rate: float, holds: bool) -> None:
        """`rate` is what `next_rate` gave."""
        if holds:
            self.held = rate
        else:
            self.failed = rate

    def _lower(self) -> float | None:
        if self.failed is None:
            return self._start
        return self.failed / 2 if self.failed > self._start / 2**MAX_HALVINGS else None


def most_rates(precision: float, doublings: int) -> int:
    """How many rates a search measures that fails after `doublings` doublings."""
    bisections = math.ceil(math.log2(math.log(2) / math.log1p(precision)))
    return 1 + doublings + max(0, bisections)


def chance_at_the_edge(num_alike: int, num_runs: int) -> float:
    """How often chance alone gives `num_alike` or more equal votes of `num_runs`, if each is a coin's throw.

    A rate at the very edge holds in half of its runs: so a verdict is worth what this is small (the
    sign test, one-sided).
    """
    ways = sum(math.comb(num_runs, k) for k in range(num_alike, num_runs + 1))
    return float(ways / 2**num_runs)
