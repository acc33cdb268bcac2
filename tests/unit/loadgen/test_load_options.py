"""The command line's timing and behaviours: what they become, and what is refused with which words."""

import argparse

import pytest

from loadgen.__main__ import main
from loadgen.behaviours import Behaviours, Patience, Pause, SlowReader
from loadgen.errors import UsageError
from loadgen.load_options import add_behaviours, add_pacing, behaviours, pacing
from loadgen.timing import FORMS, Closed, Ramp, Renewal, Scale
from loadgen.workload import Pacing


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    add_pacing(parser)
    add_behaviours(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], Pacing()),
        (["--speed", "4"], Pacing(Scale(4))),
        (["--timing", "scale=4", "--ties", "spread"], Pacing(Scale(4), "spread")),
        (
            ["--timing", "poisson=3", "--ramp", "1:2", "--seed", "9"],
            Pacing(Renewal(3, 1), ramp=Ramp(1, 2), seed=9),
        ),
        (["--timing", "closed=3"], Pacing(Closed(3))),
    ],
)
def test_pacing(words: list[str], wanted: Pacing) -> None:
    assert pacing(parsed(*words)) == wanted


def test_behaviours_are_off_unless_asked_for() -> None:
    assert behaviours(parsed()) == Behaviours()
    words = [
        "--patience",
        "5",
        "--cancel",
        "0.1",
        "--slow-reader",
        "0.2,1000",
        "--pause",
        "0.3,2",
        "--reconnect",
    ]
    wanted = Behaviours(Patience(5, 0.5), 0.1, SlowReader(0.2, 1000), Pause(0.3, 2), reconnect=True)
    assert behaviours(parsed(*words, "--reconnect")) == wanted


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--timing", "fast"], "--timing fast: cannot be used. Allowed: trace"),
        (["--speed", "0"], "scale=0: cannot be used"),
        (["--speed", "2", "--timing", "trace"], "give one of them"),
        (["--ramp", "1:2"], "--ramp 1:2: needs --timing rate=R, poisson=R or gamma=R,CV, not trace"),
        (["--timing", "rate=1", "--ramp", "x"], "--ramp x: expected FROM:TO"),
        (["--ties", "even"], "--ties even: unknown; known: burst, spread, jitter"),
        (["--timing", "rate=1", "--ties", "spread"], "--ties spread: needs recorded times"),
    ],
)
def test_what_cannot_be_is_refused_by_name(words: list[str], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        pacing(parsed(*words))
    assert told in str(caught.value)


def test_help_has_a_line_for_each_form(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["replay", "--help"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for form, what in FORMS.items():
        assert any(line.startswith(form + " ") and line.endswith(what) for line in lines)
