"""Where the time of a request went, as stacked bars."""

from loadgen.html.axis import SIDE, Axis
from loadgen.html.plot import figure, legend
from loadgen.html.tables import table
from loadgen.joined import LATE, REMAINDER, Breakdown, breakdowns
from loadgen.record import Record


def stages(records: list[Record]) -> str:
    """A bar for the mean, the p50 and the p99 request, and the numbers."""
    what = "the server's own account of each request; what it cannot see is network and client"
    found = breakdowns(records)
    if not found:
        empty = '<p class="empty">The server gave no timings: only this project\'s does.</p>'
        return figure("Where the time went", what, empty, css="wide")
    classes = colours(found)
    longest = max(breakdown.e2e_ms for breakdown in found)
    rows = "".join(_bar(breakdown, longest, classes) for breakdown in found)
    return figure(
        "Where the time went", what, rows + legend(_used(found, classes)) + _table(found), css="wide"
    )


def colours(found: list[Breakdown]) -> dict[str, str]:
    """Part to classes: a colour per stage, waiting paler than service."""
    names = [name for breakdown in found for name in breakdown.parts_ms]
    stages = list(dict.fromkeys(name.partition(".")[0] for name in names if name not in (LATE, REMAINDER)))
    fixed = {LATE: "bad", REMAINDER: "muted"}
    return {
        name: fixed.get(name)
        or f"c{1 + stages.index(name.partition('.')[0]) % 8}{' pale' if name.endswith('.wait') else ''}"
        for name in names
    }


def _bar(breakdown: Breakdown, longest_ms: float, classes: dict[str, str]) -> str:
    x = Axis(0.0, longest_ms)
    rects, begin_ms = "", 0.0
    for name, value_ms in breakdown.parts_ms.items():
        left, right = x.place(begin_ms), x.place(begin_ms + max(0.0, value_ms))
        rects += (
            f'<rect class="{classes[name]}" x="{left:.1f}" width="{right - left:.1f}" height="{SIDE:.0f}">'
            f"<title>{name}: {value_ms:,.2f} ms</title></rect>"
        )
        begin_ms += max(0.0, value_ms)
    return (
        f'<div class="stack"><span>{breakdown.title}</span>'
        f'<svg viewBox="0 0 {SIDE:.0f} {SIDE:.0f}" preserveAspectRatio="none">{rects}</svg>'
        f"<b>{breakdown.e2e_ms:,.0f} ms</b></div>"
    )


def _used(found: list[Breakdown], classes: dict[str, str]) -> list[tuple[str, str]]:
    """The legend: parts that are over 0.5 % of some bar."""
    return [
        (name, css)
        for name, css in classes.items()
        if any(breakdown.parts_ms.get(name, 0.0) > 0.005 * breakdown.e2e_ms for breakdown in found)
    ]


def _table(found: list[Breakdown]) -> str:
    names = list(dict.fromkeys(name for breakdown in found for name in breakdown.parts_ms))
    rows = [[name, *(_cell(breakdown, name) for breakdown in found)] for name in names]
    total = ["end to end", *(f"{breakdown.e2e_ms:,.2f}" for breakdown in found)]
    head = ["ms", *(breakdown.title for breakdown in found)]
    return f"<details><summary>In numbers</summary>{table(head, [*rows, total])}</details>"


def _cell(breakdown: Breakdown, name: str) -> str:
    value_ms = breakdown.parts_ms.get(name, 0.0)
    share = 100 * value_ms / breakdown.e2e_ms if breakdown.e2e_ms else 0.0
    return f"{value_ms:,.2f} ({share:.1f} %)"
