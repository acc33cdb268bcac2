"""A rate limit as one number: the generic cell rate algorithm (GCRA, ITU-T I.371)."""

MINUTE_NS = 60_000_000_000


class RateLimit:
    """So many a minute, a whole minute's worth at once at most.

    A bucket that drains would be a level and the time it was looked at; here both are one time, at which all
    that was taken will have been earned. An amount over the limit counts as the limit, or nobody could ever
    take it.

    Args:
        per_min: above 0.
    """

    def __init__(self, per_min: int) -> None:
        self.per_min = per_min
        self._earned_ns = 0.0

    def wait_ns(self, amount: int, now_ns: int) -> int:
        """How long until so much may be taken; 0: now."""
        earned_ns = max(self._earned_ns, now_ns) + self._price_ns(amount)
        return max(0, int(earned_ns - now_ns - MINUTE_NS))

    def take(self, amount: int, now_ns: int) -> None:
        """Whether there is room or not: what has been used must be paid for."""
        self._earned_ns = max(self._earned_ns, now_ns) + self._price_ns(amount)

    def give_back(self, amount: int) -> None:
        """Of what was taken, so much was not used."""
        self._earned_ns -= self._price_ns(amount)

    def num_left(self, now_ns: int) -> int:
        """What may be taken now."""
        owed_ns = max(0.0, self._earned_ns - now_ns)
        return max(0, int((MINUTE_NS - owed_ns) * self.per_min / MINUTE_NS))

    def _price_ns(self, amount: int) -> float:
        return min(amount, self.per_min) * MINUTE_NS / self.per_min
