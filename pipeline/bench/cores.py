"""Cores: which this process may use, and how to keep it to some, where the system can say."""

import os


def split() -> tuple[set[int], set[int]] | None:
    """One core for the server, the others for the clients; None where that cannot be had."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return ({cores[-1]}, set(cores[:-1])) if len(cores) > 1 else None


def keep_to(cores: set[int]) -> None:
    """Bind this process, and the threads it starts, to `cores`."""
    os.sched_setaffinity(0, cores)
