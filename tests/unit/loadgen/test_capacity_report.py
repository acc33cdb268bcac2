"""The answer of a search in words, whatever its end."""

from pathlib import Path

import pytest

from loadgen.capacity.bisect import Search
from loadgen.capacity.report import conclusion
from loadgen.capacity.runs import Load
from loadgen.capacity.votes import Verdict, Vote
from loadgen.clients.connect import target
from loadgen.replay import Options
from loadgen.slo import parse_slo
from loadgen.workload import Limits

OPTIONS = Options(Path("trace.csv"), target("http://h", None, None, 1), Limits())


def load(duration_s: float = 30.0) -> Load:
    return Load(OPTIONS, parse_slo("ttft=500ms,p=99"), 99.0, duration_s, None, 10**6, 1.0)


def verdict(rate: float, *holds: bool | None) -> Verdict:
    """None: client-bound."""
    votes = [
        Vote(
            i,
            [] if each is not False else ["slow"],
            ["late"] if each is None else [],
            {"ttft": 100.0 + i},
            9,
            rate,
            1.0,
        )
        for i, each in enumerate(holds)
    ]
    return Verdict(rate, votes)


def told(
    verdicts: list[Verdict], *, duration_s: float = 30.0, is_stopped: bool = False, precision: float = 0.5
) -> str:
    search = Search(verdicts[0].rate if verdicts else 8.0, precision)
    for each in verdicts:
        if each.holds is not None:
            search.tell(each.rate, each.holds)
    return "\n".join(conclusion(load(duration_s), search, verdicts, is_stopped=is_stopped))


def test_both_sides_with_their_evidence_and_spread() -> None:
    out = told([verdict(8, True, True, True), verdict(10, False, True, False)])
    spread = "TTFT 100.0 to 102.0 ms"
    assert out.splitlines() == [
        "capacity: 8 req/s (p99 of TTFT <= 500 ms); 10 req/s, 25.0% more, is too much",
        "  8 req/s held in 3 of 3 runs (at the very edge chance gives that 1 time in 8); " + spread,
        "  10 req/s broken in 2 of 3 runs (at the very edge chance gives that 1 time in 2); " + spread,
        "  the edge is soft: runs disagreed at 10 req/s",
    ]


@pytest.mark.parametrize(
    ("verdicts", "is_stopped", "words"),
    [
        (
            [verdict(8, True)],
            False,
            "at least 8 req/s (p99 of TTFT <= 500 ms); no higher rate than 8 req/s was asked for",
        ),
        ([verdict(8, True)], True, "at least 8 req/s (p99 of TTFT <= 500 ms); the search was stopped"),
        ([verdict(8, True), verdict(16, None)], False, "; at 16 req/s the generator itself is the bound"),
        ([verdict(8, False)], False, "no rate held p99 of TTFT <= 500 ms; the lowest tried was 8 req/s"),
        (
            [verdict(8, None)],
            False,
            "no capacity found: no rate held p99 of TTFT <= 500 ms; at 8 req/s the generator",
        ),
        ([], True, "no capacity found: no rate held p99 of TTFT <= 500 ms; the search was stopped"),
        (
            [verdict(8, True), verdict(16, False)],
            True,
            "is too much; not narrowed further: the search was stopped",
        ),
    ],
)
def test_ends(verdicts: list[Verdict], is_stopped: bool, words: str) -> None:
    assert words in told(verdicts, is_stopped=is_stopped)


def test_runs_that_are_too_small_are_said() -> None:
    """5 s at 8 req/s: 40 requests, and a queue may grow by 500 ms / 5 s = 10 % of the rate unseen."""
    out = told([verdict(8, True), verdict(8.2, False)], duration_s=5.0, precision=0.05)
    assert "40 requests a run are few: their p99 is the worst of them; 100 or more" in out
    assert (
        "runs of 5 s are short: a queue that grows by up to 10% of the rate" in out
        and "10 s would fit" in out
    )
    out = told([verdict(8, True), verdict(8.2, False)], duration_s=60.0, precision=0.05)
    assert "few" not in out and "short" not in out
