"""Charts as HTML with inline SVG: strings from numbers, no script, nothing fetched.

The drawing is an SVG that is stretched to its place, with lines that are not (non-scaling-stroke); labels
are HTML beside it. So text is as large on a phone as on a wide screen.
"""

from collections.abc import Sequence
from html import escape

import msgspec

from loadgen.html.axis import SIDE, Axis

Point = tuple[float, float]


class Mark(msgspec.Struct, frozen=True):
    """Something drawn, and its line in the legend."""

    name: str
    css: str
    """Classes of the page's style sheet: a colour, and perhaps how the line is drawn."""
    path: str
    """SVG path data; empty: nothing to draw."""
    width: float = 2.0
    """Of the line, in pixels; 0: the path is an area."""


def line(points: list[Point], x: Axis, y: Axis) -> str:
    """Path data through the points."""
    return "M" + "L".join(_at(point, x, y) for point in points) if points else ""


def steps(points: list[Point], x: Axis, y: Axis) -> str:
    """Path data of a value that holds until the next point."""
    if not points:
        return ""
    moves = (f"H{x.place(at):.1f}V{SIDE - y.place(value):.1f}" for at, value in points[1:])
    return f"M{_at(points[0], x, y)}{''.join(moves)}"


def area(points: list[Point], x: Axis, y: Axis) -> str:
    """Path data of what lies under `steps`."""
    if not points:
        return ""
    first, last = x.place(points[0][0]), x.place(points[-1][0])
    return f"{steps(points, x, y)}L{last:.1f} {SIDE:.0f}L{first:.1f} {SIDE:.0f}Z"


def bars(spans: Sequence[tuple[float, float, float]], x: Axis, y: Axis, least: float = 0.5) -> str:
    """Path data of horizontal lines: (from, to, height) of each, at least `least` places long."""
    return "".join(
        f"M{x.place(begin):.1f} {SIDE - y.place(at):.1f}H{max(x.place(end), x.place(begin) + least):.1f}"
        for begin, end, at in spans
    )


def chart(
    marks: list[Mark],
    x: Axis,
    y: Axis,
    *,
    x_unit: str,
    y_unit: str,
    css: str = "",
    height_px: int = 200,
    y_labels: list[tuple[float, str]] | None = None,
    has_legend: bool = True,
) -> str:
    """The drawing between its labelled axes, and a legend.

    Args:
        y_labels: (place, text), instead of the axis's own.
    """
    across = y.ticks() if y_labels is None else y_labels
    down = x.ticks()
    paths = "".join(_path(mark) for mark in marks if mark.path)
    return (
        f'<div class="plot {css}" style="--height:{height_px}px"><div class="unit">{escape(y_unit)}</div>'
        f'<div class="y">{"".join(_label("bottom", place, text) for place, text in across)}</div>'
        f'<svg viewBox="0 0 {SIDE:.0f} {SIDE:.0f}" preserveAspectRatio="none" aria-hidden="true">'
        f"{_grid(down, across)}{paths}</svg>"
        f'<div class="x">{"".join(_label("left", place, text) for place, text in down)}</div>'
        f'<div class="unit x-unit">{escape(x_unit)}</div></div>'
        f"{legend([(mark.name, mark.css) for mark in marks]) if has_legend else ''}"
    )


def figure(title: str, what: str, body: str | None, *, css: str = "") -> str:
    """A chart, its title and a line that says what is shown; without a body, that there is nothing."""
    shown = body if body else '<p class="empty">Nothing to show: no request gave such a value.</p>'
    return (
        f'<figure class="{css}"><figcaption><h3>{escape(title)}</h3><p>{escape(what)}</p></figcaption>'
        f"{shown}</figure>"
    )


def legend(entries: list[tuple[str, str]]) -> str:
    """(name, classes) of each."""
    items = "".join(f'<li><i class="{css}"></i>{escape(name)}</li>' for name, css in entries)
    return f'<ul class="legend">{items}</ul>'


def thinned(points: list[Point], most: int = 600) -> list[Point]:
    """Every so many points, the first and the last among them."""
    if len(points) <= most:
        return points
    step = (len(points) - 1) / (most - 1)
    return [points[round(i * step)] for i in range(most)]


def _at(point: Point, x: Axis, y: Axis) -> str:
    return f"{x.place(point[0]):.1f} {SIDE - y.place(point[1]):.1f}"


def _path(mark: Mark) -> str:
    if mark.width == 0:
        return f'<path class="area {mark.css}" d="{mark.path}"/>'
    return f'<path class="{mark.css}" style="stroke-width:{mark.width:.1f}px" d="{mark.path}"/>'


def _grid(x_labels: list[tuple[float, str]], y_labels: list[tuple[float, str]]) -> str:
    down = "".join(f"M{place:.1f} 0V{SIDE:.0f}" for place, _ in x_labels)
    across = "".join(f"M0 {SIDE - place:.1f}H{SIDE:.0f}" for place, _ in y_labels)
    return f'<path class="mesh" d="{down}{across}"/>' if down or across else ""


def _label(side: str, place: float, text: str) -> str:
    return f'<span style="{side}:{place / SIDE * 100:.2f}%">{escape(text)}</span>'
