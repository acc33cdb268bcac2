"""Cores: which this process may use, and how to keep it to some, where the system can say."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class Division(NamedTuple):
    """Who runs where."""

    server: set[int]
    clients: set[int]


def divide() -> Division | None:
    """One core for the server, the others for the clients; None where that cannot be had."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return Division({cores[-1]}, set(cores[:-1])) if len(cores) > 1 else None


def keep_to(cores: Iterable[int]) -> None:
    """Bind this process, and the threads it starts, to `cores`."""
    os.sched_setaffinity(0, cores)


@contextmanager
def kept_to(cores: Iterable[int] | None) -> Iterator[None]:
    """As keep_to, and back again; None binds nothing."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    keep_to(cores)
    try:
        yield
    finally:
        keep_to(before)


def place_threads(pid: int, cores: Iterable[int]) -> None:
    """Bind all threads that a process has now. Linux."""
    for thread in _threads(pid):
        os.sched_setaffinity(int(thread.name), cores)


def place_children(pid: int, cores: Iterable[int]) -> None:
    """Bind all threads of the processes that it has started. Linux."""
    for thread in _threads(pid):
        for child in (thread / "children").read_text().split():
            place_threads(int(child), cores)


def _threads(pid: int) -> Iterator[Path]:
    return Path(f"/proc/{pid}/task").iterdir()
