"""A runner that is watched by torch's profiler while it is told to be: where the time of its steps goes."""

from html import escape
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from pipeline.messages import StepPlan

_TOP = 60
_PAGE = """<!doctype html>
<meta charset="utf-8"><title>Steps of the device</title>
<style>
body {{ font: 14px/1.4 sans-serif; margin: 2em; }} table {{ border-collapse: collapse; }}
td, th {{ text-align: left; padding: .2em .8em; border-bottom: 1px solid #ddd; }}
td.n {{ text-align: right; white-space: nowrap; }} i {{ display: block; height: .8em; background: #48a; }}
</style>
<h1>{num_steps:,} steps, {total_ms:,.1f} ms {where}</h1>
<p>Own time of each operation, without what it calls. On a timeline: {trace}, for ui.perfetto.dev.</p>
<table>
<tr><th>operation</th><th>calls</th><th>own ms {where}</th><th>share</th><th style="width:20em"></th></tr>
{rows}
</table>
"""


class ProfiledRunner:
    """Implements runtime.bridge.Runner. torch's profiler belongs to a thread, so it is begun and ended by the
    worker's, at the first launch after `watch` and `leave` were called by any; or when the runner is closed.

    Args:
        path: of the page; the trace lies beside it.
    """

    def __init__(self, runner: Any, path: Path) -> None:
        self._runner = runner
        self._path = path
        self._is_watched = False
        self._profile: profile | None = None
        self._num_steps = 0

    @property
    def capacity(self) -> Any:
        return self._runner.capacity

    @property
    def mover(self) -> Any:
        return getattr(self._runner, "mover", None)

    def watch(self) -> None:
        self._is_watched = True

    def leave(self) -> None:
        self._is_watched = False

    def launch(self, plan: StepPlan, /) -> Any:
        if self._is_watched and self._profile is None:
            self._begin()
        if self._profile is None:
            return self._runner.launch(plan)
        if not self._is_watched:
            self._end(self._profile)
            return self._runner.launch(plan)
        self._num_steps += 1
        with record_function("launch of a step"):
            return self._runner.launch(plan)

    def renew(self) -> Any:
        return self._runner.renew()

    def close(self) -> None:
        if self._profile is not None:
            self._end(self._profile)
        self._runner.close()

    def _begin(self) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)
        self._profile.start()

    def _end(self, watched: profile) -> None:
        watched.stop()
        self._profile, self._is_watched = None, False
        trace = self._path.with_suffix(".trace.json")
        watched.export_chrome_trace(str(trace))
        self._path.write_text(page(watched.key_averages(), self._num_steps, trace.name), "utf-8")


def page(events: Any, num_steps: int, trace: str) -> str:
    """A page of what torch's profiler has added up: the device's time, or the CPU's if there is no other."""
    has_device = any(event.self_device_time_total for event in events)
    times = {
        event.key: (event.self_device_time_total if has_device else event.self_cpu_time_total, event.count)
        for event in events
    }
    total_us = sum(own_us for own_us, _ in times.values()) or 1.0
    top = sorted(times.items(), key=lambda item: -item[1][0])[:_TOP]
    rows = "\n".join(_row(name, own_us, count, own_us / total_us) for name, (own_us, count) in top)
    return _PAGE.format(
        num_steps=num_steps,
        total_ms=total_us / 1e3,
        where="on the device" if has_device else "on the CPU",
        trace=escape(trace),
        rows=rows,
    )


def _row(name: str, own_us: float, count: int, share: float) -> str:
    return (
        f'<tr><td>{escape(name)}</td><td class="n">{count:,}</td><td class="n">{own_us / 1e3:,.3f}</td>'
        f'<td class="n">{share:.1%}</td><td><i style="width:{share * 100:.1f}%"></i></td></tr>'
    )
