"""Every call on the loop's thread, counted: cProfile's file, for `python -m pstats` and its viewers."""

import cProfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def calls(path: Path) -> Iterator[None]:
    """Counting makes small functions look dearer than they are."""
    with cProfile.Profile() as profile:
        yield
    profile.dump_stats(path)
