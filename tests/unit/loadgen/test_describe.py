"""Measured shapes: by hand on small rows; on the real files digit for digit those of the published table."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.__main__ import main
from loadgen.traces.row import Blocks, TraceRow
from loadgen.traces.shape import measure

DATA = Path(__file__).parents[4] / "shared" / "data"
S = 10**9


def test_arrivals_by_hand() -> None:
    """Gaps 0, 1, 3 s: mean 4/3, deviation sqrt(14/9). Seconds from the first on: 2, 1, 0, 0, 1 requests."""
    shape = measure([TraceRow(at * S // 2, 10, 5) for at in (1, 1, 3, 9)])
    found = shape.arrivals
    assert found is not None
    assert (found.span_s, found.requests_per_s) == (4.0, 1.0)
    assert found.gap_cv == pytest.approx((14 / 9) ** 0.5 / (4 / 3))
    assert found.iod_1s == pytest.approx(np.var([2, 1, 0, 0, 1]) / 0.8)
    assert (found.num_times, found.num_ties, found.max_tied) == (3, 1, 2)


def test_one_row_and_rows_at_once_have_no_rate() -> None:
    for count in (1, 3):
        found = measure([TraceRow(7, 10, 5)] * count).arrivals
        assert found is not None and found.requests_per_s is found.gap_cv is found.iod_1s is None
    assert measure([TraceRow(0, 10, 5)], is_timed=False).arrivals is None


def test_percentiles_interpolate() -> None:
    shape = measure([TraceRow(0, count, 2 * count) for count in (1, 2, 3, 4)])
    assert shape.input is not None and shape.input.p50 == 2.5 and shape.output.p90 == pytest.approx(7.4)
    assert measure([TraceRow(0, None, 5, "text")]).input is None


def test_sharing_by_hand() -> None:
    """The third row repeats a block behind a new one: a repeat, but no prefix hit. Scopes share nothing."""
    rows = [
        TraceRow(0, 25, 1, Blocks("", (1, 2, 3), 10)),
        TraceRow(1, 25, 1, Blocks("", (1, 2, 4), 10)),
        TraceRow(2, 25, 1, Blocks("", (9, 2, 3), 10)),
        TraceRow(3, 25, 1, Blocks("b", (1, 2), 10)),
        TraceRow(4, 25, 1, Blocks("", (1, 2, 3), 10)),
    ]
    found = measure(rows).sharing
    assert found is not None and found.num_blocks == 14
    assert found.repeat_share == pytest.approx(7 / 14)
    assert found.prefix_hit_share == pytest.approx((20 + 25) / 125)
    assert measure([TraceRow(0, 10, 5)]).sharing is None


def test_sessions_by_hand() -> None:
    rows = [
        TraceRow(0, 1, 1),
        TraceRow(1, 1, 1, after=0, think_s=2.0),
        TraceRow(2, 1, 1),
        TraceRow(3, 1, 1, after=1),
    ]
    found = measure(rows).sessions
    assert found is not None
    assert (found.num_sessions, found.num_followers, found.longest, found.num_with_think_time) == (2, 2, 3, 1)
    assert measure(rows[:1]).sessions is None


TABLE: dict[str, dict[str, Any]] = {
    "azure_llm_2023_code.csv": {
        "rows": 8819, "span": "3436", "in": "1469/5188/7436/7437", "out": "13/55/251/1899",
        "rate": "2.57", "cv": "13.2", "iod": "13.2",
    },
    "azure_llm_2023_conv.csv": {
        "rows": 19366, "span": "3502", "in": "1020/2734/4142/14050", "out": "129/424/601/1000",
        "rate": "5.53", "cv": "1.09", "iod": "1.39",
    },
    "burstgpt_1_first400.csv": {
        "rows": 400, "span": "37269", "in": "314/1418/1958/2126", "out": "230/571/1421/2019",
        "rate": "0.011", "cv": "4.56", "iod": "1.0",
    },
}  # fmt: skip
"""`Measured shape of the public traces`, for the files that data/ has whole; all rows, failed ones too."""


def described(name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not in ../shared/data")
    assert main(["describe", str(DATA / name), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def as_printed(value: float, like: str) -> str:
    """`value` with as many decimals as `like` has."""
    return f"{value:.{len(like.partition('.')[2])}f}"


@pytest.mark.parametrize("name", TABLE)
def test_the_shape_equals_the_published_table_to_its_digits(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    want, shape = TABLE[name], described(f"traces/{name}", capsys)["recorded"]
    arrivals = shape["arrivals"]
    assert shape["num_rows"] == want["rows"]
    for key, value in (
        ("span", arrivals["span_s"]),
        ("rate", arrivals["requests_per_s"]),
        ("cv", arrivals["gap_cv"]),
        ("iod", arrivals["iod_1s"]),
    ):
        assert as_printed(value, want[key]) == want[key]
    for key, lengths in (("in", shape["input"]), ("out", shape["output"])):
        assert "/".join(f"{lengths[part]:.0f}" for part in ("p50", "p90", "p99", "max")) == want[key]


@pytest.mark.parametrize(
    ("name", "rows", "times", "ties", "repeat", "hit"),
    [
        ("mooncake_fast25_conversation_first1000s.jsonl", 3035, 334, 2701, "0.314", "0.319"),
        ("mooncake_fast25_synthetic_first850s.jsonl", 3273, 3262, 11, "0.543", "0.554"),
    ],
)
def test_the_shape_of_the_mooncake_excerpts(
    name: str, rows: int, times: int, ties: int, repeat: str, hit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is of the whole files; these figures are of the parts in data/, counted independently."""
    shape = described(f"traces/{name}", capsys)["usable"]
    assert (shape["num_rows"], shape["arrivals"]["num_times"], shape["arrivals"]["num_ties"]) == (
        rows,
        times,
        ties,
    )
    assert f"{shape['sharing']['repeat_share']:.3f}" == repeat
    assert f"{shape['sharing']['prefix_hit_share']:.3f}" == hit


def test_failed_rows_are_in_the_recorded_shape_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "burst.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n0,10,4\n1,0,0\n3,20,6\n")
    assert main(["describe", str(path)]) == 0
    out = capsys.readouterr().out
    assert "burstgpt, 3 rows, dropped output length 0: 1" in out and "recorded" in out
    assert main(["describe", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["usable"]["input"]["p50"] == 15 and found["recorded"]["input"]["p50"] == 10
    assert found["rows_dropped"] == {"output length 0": 1} and len(found["sha256"]) == 64


def test_a_window_of_generated_traffic_and_wrong_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a-trace.csv"
    path.write_text("0,5,1,Gamma,1,1\n600,5,1,Gamma,1,1\n")
    (tmp_path / "a-dataset.json").write_text(
        '{"0": {"input_tokens": "{7: 1.0}", "output_tokens": "{3: 1.0}"}}'
    )
    assert main(["describe", str(path), "--window", "100:160", "--seed", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 200 < found["rows_read"] < 400 and found["usable"]["arrivals"]["span_s"] < 60
    assert main(["describe", str(path), "--format", "nonsense"]) == 2
    assert "--format nonsense: unknown; known: azure" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["describe", str(path), "--window", "160:100"])
    assert "expected FIRST:LAST" in capsys.readouterr().err
