"""Medians over the rounds, and the first server against the best of the others."""

from collections.abc import Sequence
from statistics import median

import msgspec

from loadgen.versus.store import Run, Visit

_READY, _PEAK = "start to ready s", "peak RSS MiB"
_BUSY = " beside a busy process"
_KEPT = "kept beside a busy process %"
_MIB = 2**20


class Figure(msgspec.Struct, frozen=True):
    """One measure of one server."""

    value: float
    """The median."""
    least: float
    most: float
    num_clean: int
    """Runs it is the median of; 0: there were none, and it is of disturbed ones."""

    def __str__(self) -> str:
        spread = f" ({shown(self.least)}-{shown(self.most)})" if self.most > self.least else ""
        return shown(self.value) + spread + ("" if self.num_clean else " *")


def shown(value: float) -> str:
    """Three digits or more."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def figures(visits: Sequence[Visit]) -> dict[str, Figure]:
    """Of one server's visits, by measure."""
    values: dict[str, list[tuple[float, bool]]] = {}
    for visit in visits:
        for run in visit.runs:
            for name, value in run.measures.items():
                values.setdefault(name, []).append((value, not run.is_disturbed))
        if visit.ready_s is not None:
            values.setdefault(_READY, []).append((visit.ready_s, True))
        if visit.peak_rss_bytes is not None:
            values.setdefault(_PEAK, []).append((visit.peak_rss_bytes / _MIB, True))
    found = {name: _figure(of) for name, of in values.items()}
    return found | _kept(found)


def table(names: Sequence[str], visits: Sequence[Visit]) -> str:
    """Markdown: a row for each measure, a column for each server, and the first against the best other."""
    by_server = {name: figures([visit for visit in visits if visit.server == name]) for name in names}
    measures = list(dict.fromkeys(measure for found in by_server.values() for measure in found))
    last = [*(m for m in measures if m in (_READY, _PEAK)), *(m for m in measures if m.endswith(_KEPT))]
    measures = [measure for measure in measures if measure not in last] + last
    header = ["", *names] + (["first / best other"] if len(names) > 1 else [])
    lines = [header, ["---"] * len(header)]
    for measure in measures:
        row = [found.get(measure) for found in by_server.values()]
        lines.append([measure, *("-" if each is None else str(each) for each in row), *_ratio(measure, row)])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + _notes(by_server, visits)


def _figure(of: list[tuple[float, bool]]) -> Figure:
    clean = [value for value, is_clean in of if is_clean]
    values = clean or [value for value, _ in of]
    return Figure(median(values), min(values), max(values), len(clean))


def _kept(found: dict[str, Figure]) -> dict[str, Figure]:
    """What share of its quiet rate each case keeps beside a busy process."""
    kept = {}
    for name, busy in found.items():
        quiet = found.get(name.replace(_BUSY, ""))
        if _BUSY in name and "tok/s" in name and quiet is not None:
            share = 100 * busy.value / quiet.value
            kept[f"{name.partition(_BUSY)[0]}: {_KEPT}"] = Figure(
                share, share, share, min(busy.num_clean, quiet.num_clean)
            )
    return kept


def _ratio(measure: str, row: list[Figure | None]) -> list[str]:
    """The first over the best other: above 1 is more, which is better for rates and worse for the rest."""
    others = [each.value for each in row[1:] if each is not None]
    if len(row) < 2:
        return []
    if row[0] is None or not others:
        return ["-"]
    is_rate = "tok/s" in measure or measure.endswith(_KEPT)
    best = max(others) if is_rate else min(others)
    return [f"{row[0].value / best:.2f}x" if best else "-"]


def _notes(by_server: dict[str, dict[str, Figure]], visits: Sequence[Visit]) -> str:
    notes = []
    if any(not figure.num_clean for found in by_server.values() for figure in found.values()):
        notes.append("\\* other processes disturbed every run.")
    for name in by_server:
        runs = [run for visit in visits if visit.server == name for run in visit.runs]
        notes += _lengths(name, runs)
        failures = [visit.failure for visit in visits if visit.server == name and visit.failure]
        notes += [f"{name} failed: {failure.splitlines()[0]}" for failure in failures[:1]]
    return "".join(f"\n{note}\n" for note in notes)


def _lengths(name: str, runs: list[Run]) -> list[str]:
    num_off = sum(run.num_off for run in runs)
    return [f"{name}: {num_off} answers were of another length than asked."] if num_off else []
