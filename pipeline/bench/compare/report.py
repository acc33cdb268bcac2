"""Report: what a comparison found, in words and a table."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from pipeline.bench.compare.answers import Answers
from pipeline.bench.compare.ratio import CONFIDENCE, Ratio
from pipeline.bench.compare.rounds import Times
from pipeline.bench.compare.side import Side


def comparison_report(a: Side, b: Side, answers: Answers, times: Times | None, note: str) -> Group:
    """Both sides, how long they take, and whether they answer the same. `note`: about the machine."""
    lines = [f"a is {a.use}", f"b is {b.use}", *answer_lines(answers)]
    if times is None:
        return Group(*map(Text, lines))
    after = [verdict(times), *([note] if note else [])]
    return Group(*map(Text, lines), _table(a, b, times), *map(Text, after))


def answer_lines(answers: Answers) -> list[str]:
    """Whether they answer the same; the first differences."""
    if answers.are_alike:
        counts = f"{answers.messages_a:,} messages of a, {answers.messages_b:,} of b"
        return [f"The answers are the same: {answers.equivalence} ({counts})."]
    lines = [f"b did not come to the end: {answers.failure}."] if answers.failure else []
    if answers.num_differences:
        lines.append(f"The answers differ {answers.num_differences:,} times, in {answers.equivalence}:")
        lines += [f"  {each}" for each in answers.differences]
        more = answers.num_differences - len(answers.differences)
        lines += [f"  and {more:,} more"] if more else []
    return lines


def verdict(times: Times) -> str:
    """Whether b is faster."""
    ratio, sure = times.ratio, f"{CONFIDENCE:.0%} sure"
    taken = f"it takes {ratio.value:.3f} times as long as a ({ratio.low:.3f} to {ratio.high:.3f}, {sure})"
    if ratio.verdict == "not told apart":
        seen = max(ratio.high - 1, 1 - ratio.low)
        return (
            f"b is not told apart from a in {times.rounds} rounds: {taken}. "
            f"A difference under some {seen:.1%} needs more of them."
        )
    return f"b is {ratio.verdict} than a: {taken}."


def exceeds(ratio: Ratio, max_ratio: float) -> bool:
    """Whether b is surely slower than that many times a."""
    return ratio.low > max_ratio


def _table(a: Side, b: Side, times: Times) -> Table:
    table = Table(title=f"{a.stage}, {times.rounds} rounds", title_justify="left")
    table.add_column("what")
    for name in ("a", "b"):
        table.add_column(name, justify="right")
    for name, label in (
        ("row_us", "us per row"),
        ("p50_us", "us per message, p50"),
        ("p99_us", "us per message, p99"),
    ):
        table.add_row(label, *(f"{getattr(cost, name):,.2f}" for cost in (times.a, times.b)))
    return table
