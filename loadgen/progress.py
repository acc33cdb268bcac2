"""What is going on, while it goes on: a live view on a terminal, a plain line every few seconds elsewhere."""

import asyncio

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loadgen.clock import RunClock
from loadgen.openloop import OpenLoop
from loadgen.record import Record
from loadgen.tally import Tally

_LIVE_EVERY_S = 0.5
_PLAIN_EVERY_S = 5.0
_MAX_GAPS = 1000
"""Looked at each time: more would be a hole in the time stamps. What is over is in no percentile."""


class Progress:
    """Shows a run until cancelled. Draws rarely: it shares the event loop with the clock."""

    def __init__(self, run: OpenLoop, clock: RunClock, console: Console) -> None:
        self._run = run
        self._clock = clock
        self._console = console
        self._latencies = Latencies()
        self._last_s = 0.0
        self._last_tokens = 0
        self._last_sent = 0

    async def show(self) -> None:
        """Runs until cancelled."""
        if not self._console.is_terminal:
            while True:
                await asyncio.sleep(_PLAIN_EVERY_S)
                self._console.print("  ".join(self._cells()), highlight=False, soft_wrap=True)
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(self._view(), refresh=True)
                await asyncio.sleep(_LIVE_EVERY_S)

    def _view(self) -> Group:
        run = self._run
        bar = ProgressBar(total=len(run.jobs), completed=len(run.records) - len(run.live), width=60)
        cells = self._cells()
        table = Table.grid(padding=(0, 3))
        table.add_row(*cells[:4])
        table.add_row(*cells[4:])
        return Group(Text("stopping" if run.is_stopped else "replaying", style="bold"), bar, table)

    def _cells(self) -> list[str]:
        """Counts, then rates and latencies so far."""
        run, now_s = self._run, self._clock()
        self._latencies.follow(run.records)
        num_sent, num_live = len(run.records), len(run.live)
        sent_per_s, tokens_per_s = self._rates(now_s)
        state = "stopping" if run.is_stopped else f"{now_s:.0f} s"
        return [
            f"{state}: sent {num_sent}/{len(run.jobs)}",
            f"live {num_live}",
            f"done {num_sent - num_live - run.num_failed}",
            f"failed {run.num_failed}",
            f"{sent_per_s:.1f} req/s",
            f"{tokens_per_s:.0f} tok/s",
            _spread("TTFT", self._latencies.ttft),
            _spread("ITL", self._latencies.itl),
        ]

    def _rates(self, now_s: float) -> tuple[float, float]:
        """Requests sent and tokens received per second, since the last time."""
        run = self._run
        tokens = run.num_tokens_ended + sum(record.num_tokens_seen for record in run.live.values())
        passed_s = max(now_s - self._last_s, 1e-9)
        rates = (len(run.records) - self._last_sent) / passed_s, (tokens - self._last_tokens) / passed_s
        self._last_s, self._last_tokens, self._last_sent = now_s, tokens, len(run.records)
        return rates[0], max(0.0, rates[1])


class Latencies:
    """TTFT and ITL of a run so far; each chunk is looked at once."""

    def __init__(self) -> None:
        self.ttft, self.itl = Tally(), Tally()
        self._num_known = 0
        self._open: list[tuple[Record, int]] = []
        """Records that may get more chunks, and how many of theirs were looked at."""

    def follow(self, records: list[Record]) -> None:
        """Takes what is new. `records` only grows."""
        self._open += [(record, 0) for record in records[self._num_known :]]
        self._num_known = len(records)
        left = _MAX_GAPS
        still_open = []
        for record, num_seen in self._open:
            is_closed, num_chunks = record.closed_s is not None, len(record.chunk_s)
            left -= self._take(record, num_seen, min(num_chunks, num_seen + left))
            if not is_closed:
                still_open.append((record, num_chunks))
        self._open = still_open

    def _take(self, record: Record, first: int, last: int) -> int:
        """Chunks first..last-1; returns how many."""
        for i in range(first, last):
            if i == 0:
                self.ttft.add(record.chunk_s[0] - record.intended_s)
            else:
                self.itl.add(record.chunk_s[i] - record.chunk_s[i - 1])
        return max(0, last - first)


def _spread(name: str, tally: Tally) -> str:
    """Median and p99."""
    values = [tally.percentile(percent) for percent in (50, 99)]
    p50, p99 = ("-" if value is None else f"{1000 * value:.0f}" for value in values)
    return f"{name} p50 {p50} p99 {p99} ms"
