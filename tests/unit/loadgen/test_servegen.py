"""Traffic generated from ServeGen's parameters has their rates, laws and lengths, and is the seed's alone."""

import json
from pathlib import Path

import numpy as np
import pytest

from loadgen.errors import TraceError
from loadgen.traces import ReadOptions, Trace, load

DATA = Path(__file__).parents[4] / "shared" / "data" / "servegen"
LENGTHS = {"input_tokens": "{10: 0.25, 20: 0.75}", "output_tokens": "{5: 1.0}"}


def client(folder: Path, windows: list[str], fields: dict[str, str] = LENGTHS, name: str = "chunk-1") -> Path:
    """A client of 600 s windows, its lengths the same all day."""
    path = folder / f"{name}-trace.csv"
    path.write_text("".join(f"{600 * i},{window}\n" for i, window in enumerate(windows)))
    (folder / f"{name}-dataset.json").write_text(json.dumps({"0": fields}))
    return path


def gaps_s(trace: Trace) -> np.ndarray:
    return np.diff([row.at_ns for row in trace.rows]) / 1e9


@pytest.mark.parametrize(
    ("pattern", "shape", "cv"), [("Gamma", 0.25, 2.0), ("Weibull", 0.5, 5**0.5), ("Gamma", 4, 0.5)]
)
def test_gaps_have_the_windows_law(tmp_path: Path, pattern: str, shape: float, cv: float) -> None:
    trace = load(client(tmp_path, [f"20,{cv},{pattern},{shape},99"] * 4))
    gaps = gaps_s(trace)
    assert trace.format == "servegen"
    assert len(trace.rows) == pytest.approx(48_000, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_requests_follow_the_rates_window_by_window(tmp_path: Path) -> None:
    rates = [0, 2, 8, 0, 0, 1, 20]
    trace = load(client(tmp_path, [f"{rate},1,{'Gamma' if rate else ''},1,1" for rate in rates]))
    counts = np.bincount([row.at_ns // (600 * 10**9) for row in trace.rows], minlength=7)
    assert counts == pytest.approx([600 * rate for rate in rates], rel=0.1)
    assert f"rates make {600 * sum(rates)} requests" in trace.notes[0]


def test_a_gap_longer_than_a_window_is_kept(tmp_path: Path) -> None:
    """One request in 3000 s: a generator that begins anew in each 600 s window would make far fewer."""
    trace = load(client(tmp_path, [f"{1 / 3000},1,Gamma,1,1"] * 5000))
    assert len(trace.rows) == pytest.approx(1000, rel=0.12)
    assert gaps_s(trace).mean() == pytest.approx(3000, rel=0.12)


def test_lengths_are_drawn_from_the_tables(tmp_path: Path) -> None:
    trace = load(client(tmp_path, ["10,1,Gamma,1,1"] * 2))
    inputs = [row.num_input for row in trace.rows]
    assert set(inputs) == {10, 20} and {row.num_output for row in trace.rows} == {5}
    assert inputs.count(20) / len(inputs) == pytest.approx(0.75, abs=0.02)


def test_the_seed_decides_and_a_window_is_a_part_of_the_day(tmp_path: Path) -> None:
    path = client(tmp_path, ["3,1,Gamma,1,1"] * 4)
    day, same, other = (load(path, None, ReadOptions(seed=seed)).rows for seed in (1, 1, 2))
    assert day == same != other
    part = load(path, None, ReadOptions(seed=1, window_s=(700, 1300))).rows
    assert part == [row for row in day if 700 <= row.at_ns / 1e9 < 1300]
    assert len(part) > 1000


def test_the_digest_covers_rates_and_lengths(tmp_path: Path) -> None:
    path = client(tmp_path, ["3,1,Gamma,1,1"] * 2)
    before = load(path).sha256
    client(tmp_path, ["3,1,Gamma,1,1"] * 2, LENGTHS | {"output_tokens": "{6: 1.0}"})
    assert load(path).sha256 != before


def test_a_folder_is_all_its_clients_and_one_does_not_change_another(tmp_path: Path) -> None:
    alone = load(client(tmp_path, ["1,1,Gamma,1,1"] * 2, name="a")).rows
    client(tmp_path, ["1,1,Gamma,1,1"] * 2, LENGTHS | {"image_count": "{0: 0.5, 2: 0.5}"}, name="b")
    both = load(tmp_path)
    assert set(alone) < set(both.rows)
    assert both.dropped["has images, audio or video"] == pytest.approx(600, rel=0.15)


@pytest.mark.parametrize(
    ("windows", "fields", "why"),
    [
        (["1,1,Gamma,1,1", "1,1,Pareto,1,1"], LENGTHS, r"trace.csv:2: expected t_s,rate,cv,Gamma or Weibull"),
        (["1,1,Gamma,1,1", "1,1,,1,1"], LENGTHS, r"trace.csv:2: a rate of 1 needs a pattern"),
        (["1,1,Gamma,1,1"], LENGTHS, "at least two windows"),
        (
            ["1,1,Gamma,1,1"] * 2,
            LENGTHS | {"output_tokens": "{}"},
            "output_tokens: a window with requests has no",
        ),
        (
            ["1,1,Gamma,1,1"] * 2,
            LENGTHS | {"input_tokens": "__import__('os')"},
            "input_tokens: expected {value",
        ),
        (["1,1,Gamma,1,1"] * 2, LENGTHS | {"input_tokens": "{1: 0.5}"}, "add to 1"),
        (["1,1,Gamma,1,1"] * 2, {"output_tokens": "{1: 1.0}"}, "none of the fields input_tokens"),
    ],
)
def test_odd_parameters_are_errors(
    tmp_path: Path, windows: list[str], fields: dict[str, str], why: str
) -> None:
    with pytest.raises(TraceError, match=why):
        load(client(tmp_path, windows, fields))


def test_a_real_client() -> None:
    path = DATA / "deepseek-r1.chunk-11-trace.csv"
    if not path.exists():
        pytest.skip(f"{path.name} is not in ../shared/data/servegen")
    trace = load(path, None, ReadOptions(seed=3))
    assert len(trace.rows) == pytest.approx(30_411, rel=0.03)
    assert min(row.at_ns for row in trace.rows) >= 43_200 * 10**9  # its rates are 0 before
