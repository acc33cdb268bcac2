"""Ctrl-C and SIGTERM as the cancelling of a task, so that what it holds is given back in order."""

import asyncio
import signal


class Interrupted(Exception):
    """Ctrl-C ended a run; what it has measured is no result."""


def cancel_on_signals() -> None:
    """From now on either signal cancels the current task, each time anew.

    To be called again after each `measure()`: while that runs, Ctrl-C is its own, and then nobody's.
    """
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("needs a running task")
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
