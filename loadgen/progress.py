"""What is going on, while it goes on: a live line on a terminal, a plain one every few seconds elsewhere."""

import asyncio

from rich.console import Console
from rich.live import Live
from rich.text import Text

from loadgen.clock import RunClock
from loadgen.openloop import OpenLoop

_LIVE_EVERY_S = 0.5
_PLAIN_EVERY_S = 5.0


class Progress:
    """Shows a run until cancelled. Draws rarely: it shares the event loop with the clock."""

    def __init__(self, run: OpenLoop, clock: RunClock, console: Console) -> None:
        self._run = run
        self._clock = clock
        self._console = console
        self._last_s = 0.0
        self._last_tokens = 0

    async def show(self) -> None:
        """Runs until cancelled."""
        if not self._console.is_terminal:
            while True:
                await asyncio.sleep(_PLAIN_EVERY_S)
                self._console.print(self._line(), highlight=False)
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(Text(self._line()), refresh=True)
                await asyncio.sleep(_LIVE_EVERY_S)

    def _line(self) -> str:
        run, now_s = self._run, self._clock()
        num_sent, num_live = len(run.records), len(run.live)
        state = "stopping" if run.is_stopped else f"{now_s:.0f} s"
        return (
            f"{state}: sent {num_sent}/{len(run.jobs)}  live {num_live}  "
            f"done {num_sent - num_live - run.num_failed}  failed {run.num_failed}  "
            f"{self._tokens_per_s(now_s):.0f} tok/s"
        )

    def _tokens_per_s(self, now_s: float) -> float:
        """Since the last line."""
        tokens = self._run.num_tokens_ended + sum(r.num_tokens_seen for r in self._run.live.values())
        rate = (tokens - self._last_tokens) / max(now_s - self._last_s, 1e-9)
        self._last_s, self._last_tokens = now_s, tokens
        return max(0.0, rate)
