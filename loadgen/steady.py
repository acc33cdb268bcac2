"""No pauses of the garbage collector while time stamps are taken."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def steady() -> Iterator[None]:
    """Keeps Python's collector of reference cycles out of a run.

    Scanning what a run keeps (jobs, records) stops the loop for 15 ms and more: a hole in every time stamp.
    And there is nothing to find: requests, abandoned ones too, leave no cycles (a test counts them).
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
