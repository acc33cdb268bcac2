"""Where the memory that is left comes from: tracemalloc, as a page with a table."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

_FRAMES = 12
_TOP = 60
_PAGE = """<!doctype html>
<meta charset="utf-8"><title>Memory of a stage</title>
<style>
body {{ font: 14px/1.4 sans-serif; margin: 2em; }} table {{ border-collapse: collapse; }}
td, th {{ text-align: left; vertical-align: top; padding: .3em .8em; border-bottom: 1px solid #ccc; }}
td.n {{ text-align: right; white-space: nowrap; }} pre {{ margin: 0; }}
</style>
<h1>Memory that was taken and not given back</h1>
<p>{kept:,} bytes more at the end than at the beginning; at most {peak:,} at once. Below are the places that
kept the most, what the bench itself keeps included. Innermost call first.</p>
<table><tr><th>bytes</th><th>pieces</th><th>where</th></tr>
{rows}
</table>
"""


@contextmanager
def memory(path: Path) -> Iterator[None]:
    """Of all threads. What is given back before the end is in the peak alone."""
    tracemalloc.start(_FRAMES)
    try:
        begun_bytes, _ = tracemalloc.get_traced_memory()
        before = tracemalloc.take_snapshot()
        tracemalloc.reset_peak()
        yield
        kept_bytes, peak_bytes = tracemalloc.get_traced_memory()
        after = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    ours = [tracemalloc.Filter(False, tracemalloc.__file__), tracemalloc.Filter(False, __file__)]
    changes = after.filter_traces(ours).compare_to(before.filter_traces(ours), "traceback")
    rows = "\n".join(_row(change) for change in changes[:_TOP] if change.size_diff > 0)
    page = _PAGE.format(kept=kept_bytes - begun_bytes, peak=peak_bytes - begun_bytes, rows=rows)
    path.write_text(page, "utf-8")


def _row(change: tracemalloc.StatisticDiff) -> str:
    where = "\n".join(change.traceback.format(most_recent_first=True))
    return (
        f'<tr><td class="n">{change.size_diff:,}</td><td class="n">{change.count_diff:,}</td>'
        f"<td><pre>{escape(where)}</pre></td></tr>"
    )
