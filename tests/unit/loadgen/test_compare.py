"""Two runs: refused unless they sent the same, and only real differences are called so."""

import random
from pathlib import Path

import msgspec
import pytest

from loadgen.__main__ import main
from loadgen.compare import compare
from loadgen.errors import UsageError
from loadgen.result import Result, encode
from tests.unit.loadgen.test_result import made_result


def test_a_slower_run_is_told_from_noise_and_an_equal_one_is_not() -> None:
    slower = {one.name: one for one in compare(made_result(), made_result(slower=1.2))}
    assert slower["TTFT mean ms"].is_distinguishable
    low, high = slower["TTFT mean ms"].interval or (0.0, 0.0)
    change = slower["TTFT mean ms"].b - slower["TTFT mean ms"].a
    assert low <= change <= high and change == pytest.approx(0.2 * slower["TTFT mean ms"].a)
    assert slower["longest gap p50 ms"].b == pytest.approx(36)
    assert not slower["finished %"].is_distinguishable
    assert slower["output tok/s"].interval is None
    assert not any(one.is_distinguishable for one in compare(made_result(), made_result()))


def noisy(result: Result, amount_s: float) -> Result:
    """The same run, each answer earlier or later by a random time of this deviation."""
    rng = random.Random(0)
    for record in result.requests:
        shift = rng.gauss(0, amount_s)
        record.chunk_s = [at + shift for at in record.chunk_s]
    return result


def test_noise_without_a_direction_is_not_a_difference() -> None:
    found = {one.name: one for one in compare(made_result(), noisy(made_result(), 0.03))}
    low, high = found["TTFT mean ms"].interval or (0.0, 0.0)
    assert low < 0 < high and high - low < 20
    assert not found["TTFT mean ms"].is_distinguishable


def test_the_same_seed_gives_the_same_intervals() -> None:
    a, b = made_result(), noisy(made_result(), 0.03)
    assert compare(a, b, seed=3) == compare(a, b, seed=3) != compare(a, b, seed=4)


def test_p99_needs_a_hundred_requests() -> None:
    names = [one.name for one in compare(made_result(99), made_result(99))]
    assert "TTFT p90 ms" in names and "TTFT p99 ms" not in names
    assert "TTFT p99 ms" in [one.name for one in compare(made_result(100), made_result(100))]


def test_a_run_without_finished_requests_has_no_latencies_to_compare() -> None:
    failed = made_result()
    for record in failed.requests:
        record.fail("http_500", "no")
    found = {one.name: one for one in compare(made_result(), failed)}
    assert list(found) == ["finished %", "output tok/s", "finished requests/s"]
    assert found["finished %"].b == 0 and found["finished %"].is_distinguishable


def test_runs_without_a_request_in_common_are_refused() -> None:
    nothing = msgspec.structs.replace(made_result(), requests=[])
    with pytest.raises(UsageError, match="no request was sent in both"):
        compare(made_result(), nothing)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / name for name in ("a.json", "b.json", "other.json")]
    for path, result in zip(
        paths, (made_result(), made_result(slower=2.0), made_result(due="e" * 64)), strict=True
    ):
        path.write_bytes(encode(result))
    assert main(["compare", str(paths[0]), str(paths[1])]) == 0
    out = capsys.readouterr().out
    assert "distinguishable from noise: TTFT mean ms" in out and "higher" in out
    assert main(["compare", str(paths[0]), str(paths[2])]) == 2
    assert "the runs sent different workloads (due times differ" in capsys.readouterr().err
