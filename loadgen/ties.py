"""Rows that share a recorded time.

Mooncake's conversation clock is a grid of 3 s: sent as they stand, its rows arrive in bursts that nobody
recorded.
"""

import random
from collections.abc import Iterator
from itertools import groupby

POLICIES = {
    "burst": "all at once, as they stand",
    "spread": "evenly over the gap to the next recorded time",
    "jitter": "at random times in that gap, by --seed",
}


def num_tied(times_s: list[float]) -> int:
    """Rows that share their time with another."""
    return sum(size for _, size in _groups(times_s) if size > 1)


def untied(times_s: list[float], policy: str, seed: int) -> list[float]:
    """`times_s` (in order) with ties resolved by `policy`, still in order.

    The last group has no next time: it is spread over as long a gap as the one before it.
    """
    if policy == "burst":
        return times_s
    rng = random.Random(f"ties:{seed}")
    groups = list(_groups(times_s))
    found: list[float] = []
    gap_s = 0.0
    for number, (at_s, size) in enumerate(groups):
        if number + 1 < len(groups):
            gap_s = groups[number + 1][0] - at_s
        found += [at_s + gap_s * place for place in _places(size, policy, rng)]
    return found


def _groups(times_s: list[float]) -> Iterator[tuple[float, int]]:
    """(time, number of rows at it)."""
    for at_s, rows in groupby(times_s):
        yield at_s, sum(1 for _ in rows)


def _places(size: int, policy: str, rng: random.Random) -> list[float]:
    """Where in the gap (0 to 1) each of `size` rows goes. A row alone stays where it is."""
    if size == 1:
        return [0.0]
    if policy == "spread":
        return [place / size for place in range(size)]
    return sorted(rng.random() for _ in range(size))
