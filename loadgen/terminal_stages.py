"""Where the time went, as stacked bars of characters."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadgen.joined import LATE, REMAINDER, Breakdown, breakdowns
from loadgen.record import Record

_WIDTH = 60
_COLOURS = ("blue", "green", "magenta", "yellow", "bright_magenta", "cyan", "bright_yellow", "bright_red")
_MIN_SHARE = 0.005
"""Of the end-to-end time: smaller parts are left out of the table, not of the bar."""


def print_stages(console: Console, records: list[Record]) -> None:
    """Nothing if the server gave no timings."""
    found = breakdowns(records)
    if not found:
        return
    colours = _colours(found)
    table = Table("where the time went", "E2E ms", "")
    table.columns[1].justify = "right"
    longest = max(breakdown.e2e_ms for breakdown in found)
    for breakdown in found:
        table.add_row(breakdown.title, f"{breakdown.e2e_ms:.1f}", _bar(breakdown, longest, colours))
    console.print(table)
    console.print(_parts(found, colours))


def _colours(found: list[Breakdown]) -> dict[str, str]:
    """A colour for each stage; its waiting is shaded."""
    names = [name for breakdown in found for name in breakdown.parts_ms]
    stages = list(dict.fromkeys(name.partition(".")[0] for name in names if name not in (LATE, REMAINDER)))
    fixed = {LATE: "red", REMAINDER: "white"}
    return {
        name: fixed.get(name) or _COLOURS[stages.index(name.partition(".")[0]) % len(_COLOURS)]
        for name in names
    }


def _bar(breakdown: Breakdown, longest_ms: float, colours: dict[str, str]) -> Text:
    """Ends of parts are rounded, not their lengths, so that the bar is as long as its sum."""
    bar, begin_ms, drawn = Text(), 0.0, 0
    for name, value_ms in breakdown.parts_ms.items():
        begin_ms += value_ms
        end = round(_WIDTH * begin_ms / longest_ms) if longest_ms else 0
        bar.append(_block(name) * max(0, end - drawn), style=colours[name])
        drawn = max(drawn, end)
    return bar


def _block(name: str) -> str:
    return "░" if name.endswith(".wait") else "█"


def _parts(found: list[Breakdown], colours: dict[str, str]) -> Table:
    table = Table("ms", *(breakdown.title for breakdown in found))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, colour in colours.items():
        values = [breakdown.parts_ms.get(name, 0.0) for breakdown in found]
        shares = [value / b.e2e_ms for value, b in zip(values, found, strict=True) if b.e2e_ms]
        if max(shares, default=0.0) >= _MIN_SHARE:
            label = Text(_block(name) + " ", style=colour).append(name, style="default")
            table.add_row(label, *(f"{value:.1f}" for value in values))
    return table
