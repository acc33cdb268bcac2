"""The command that compares each stage alone with the server it was recorded in."""

import re
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from pipeline.bench.alone_against_live import RESULT, Row, Times, main, report

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:03.{milli:03}0000,{20 + milli % 7},12\n" for milli in range(0, 1000, 125)
)


@pytest.mark.nightly
def test_every_stage_has_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How far the two are from each other is the machine's to say: the exit status is 0 or 1."""
    trace, folder = tmp_path / "azure.csv", tmp_path / "run"
    trace.write_text(TRACE, "utf-8")
    argv = [str(folder), "--trace", str(trace), "--fake", "5"]
    assert main([*argv, "--", "--tokens-per-word", "6"]) in (0, 1)
    rows = msgspec.json.decode((folder / RESULT).read_bytes(), type=list[Row])
    stages = ["ingress", "tokenize", "schedule", "execute", "sample", "detokenize", "stream"]
    assert [row.stage for row in rows] == stages
    assert all(each.p50_us > 0 for row in rows for each in (row.live, row.alone, row.beside))
    assert {(row.live.messages, row.alone.messages, row.beside.messages) for row in rows[:2]} == {(8, 8, 8)}
    assert "detokenize" in capsys.readouterr().out


def test_a_folder_that_is_there_is_not_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--trace", "x.csv"]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_the_ratios_are_by_live() -> None:
    row = Row("sample", "handle()", Times(9, 2.0, 10.0), Times(8, 3.0, 11.0), Times(8, 2.5, 9.0))
    assert (row.ratios, row.mean_ratios) == ((1.1, 0.9), (1.5, 1.25))
    console = Console(width=80, record=True, file=StringIO())
    console.print(report([row]))
    medians, means = (line for line in console.export_text().splitlines() if "sample" in line)
    assert re.findall(r"[\d.]+", medians) == ["9", "10.0", "11.0", "1.10", "9.0", "0.90"]
    assert re.findall(r"[\d.]+", means) == ["9", "2.0", "3.0", "1.50", "2.5", "1.25"]
