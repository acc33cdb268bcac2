"""Report: what a comparison found, in words and a table."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from pipeline.bench.compare.answers import Answers
from pipeline.bench.compare.ratio import CONFIDENCE, NOT_TOLD_APART, Ratio
from pipeline.bench.compare.rounds import Times
from pipeline.bench.compare.side import Side


def comparison_report(a: Side, b: Side, answers: Answers, times: Times | None, notes: list[str]) -> Group:
    """Whether they answer the same, and how long they take. `notes`: what is to be known besides."""
    lines = [f"a is {a.use}", f"b is {b.use}", *answer_lines(answers)]
    if times is None:
        return Group(*map(Text, [*lines, *notes]))
    return Group(*map(Text, lines), _table(a.stage, times), *map(Text, [verdict(times), *notes]))


def answer_lines(answers: Answers) -> list[str]:
    """Whether they answer the same; the first differences."""
    counts = f"{answers.messages_a:,} messages of a, {answers.messages_b:,} of b"
    if answers.are_alike:
        return [f"They answer the same ({counts}): {answers.equivalence}."]
    lines = [f"b did not come to the end: {answers.failure}."] if answers.failure else []
    if answers.num_differences:
        places = "1 place" if answers.num_differences == 1 else f"{answers.num_differences:,} places"
        lines.append(f"They differ in {places} ({counts}): {answers.equivalence}. The first:")
        lines += [f"  {each}" for each in answers.differences]
    return lines


def verdict(times: Times) -> str:
    """Whether b is faster, in words."""
    ratio = times.ratio
    taken = f"it takes {ratio.value:.3f} times as long ({CONFIDENCE:.0%} sure: {_interval(ratio)})"
    if ratio.verdict != NOT_TOLD_APART:
        return f"b is {ratio.verdict} than a: {taken}."
    words = f"b is not told apart from a in {times.rounds} rounds: {taken}."
    if times.median_ratio.verdict != NOT_TOLD_APART:
        return f"{words} Its median message is {times.median_ratio.verdict}: see p99 for what is not."
    return f"{words} A smaller difference needs more rounds to be seen."


def _table(stage: str, times: Times) -> Table:
    title = f"{stage}: {times.rounds} rounds of {times.messages:,} messages"
    table = Table(title=title, title_justify="left")
    table.add_column("us")
    for name in ("a", "b", f"b / a ({CONFIDENCE:.0%} sure)"):
        table.add_column(name, justify="right")
    for label, name, ratio in (
        ("per row", "row_us", times.ratio),
        ("per message, median", "p50_us", times.median_ratio),
        ("per message, p99", "p99_us", None),
    ):
        costs = (f"{getattr(cost, name):,.2f}" for cost in (times.a, times.b))
        table.add_row(label, *costs, f"{ratio.value:.3f} ({_interval(ratio)})" if ratio else "")
    return table


def _interval(ratio: Ratio) -> str:
    return f"{ratio.low:.3f} to {ratio.high:.3f}"
