"""The generator measures itself: small loads here, for the figures are docs/benchmarks.md's."""

import json
import os

import pytest

from loadgen.__main__ import main


@pytest.mark.parametrize("protocol", ["sse", "ws"])
def test_a_small_load_is_served_whole(protocol: str, capsys: pytest.CaptureFixture[str]) -> None:
    cores = os.sched_getaffinity(0)
    main(["selftest", "--protocol", protocol, "--rate", "100", "--tokens", "5", "--seconds", "0.5", "--json"])
    (found,) = json.loads(capsys.readouterr().out)
    assert found["num_failed"] == 0
    assert found["requests_per_s"] == pytest.approx(100, rel=0.5)  # 50 Poisson arrivals
    assert found["chunks_per_s"] == pytest.approx(500, rel=0.6)
    assert os.sched_getaffinity(0) == cores


def test_too_much_is_called_client_bound_and_changes_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """5,000 requests within 0.05 s: nobody starts one in 10 us."""
    words = ["--protocol", "ws", "--rate", "100000", "--tokens", "1", "--seconds", "0.05"]
    assert main(["selftest", *words]) == 1
    assert "CLIENT-BOUND ws: 100000 requests/s of 1 tokens: p99 lateness" in capsys.readouterr().out


def test_too_short_a_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--tokens", "100", "--seconds", "3"]) == 2
    assert "an answer of 100 tokens takes half of it or more" in capsys.readouterr().err
