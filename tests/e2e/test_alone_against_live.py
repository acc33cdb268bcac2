"""The command that compares each stage alone with the server it was recorded in."""

from pathlib import Path

import msgspec
import pytest

from pipeline.bench.alone_against_live import RESULT, Live, Row, main, report

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
    assert all(row.live.p50_us > 0 and row.alone.p50_us > 0 for row in rows)
    assert rows[1].live.messages == 8
    assert "detokenize" in capsys.readouterr().out


def test_a_folder_that_is_there_is_not_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--trace", "x.csv"]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_the_ratio_is_alone_by_live() -> None:
    row = Row("sample", "handle()", Live(9, 9, 2.0, 10.0), Live(8, 8, 3.0, 11.0))
    assert (row.ratio, row.mean_ratio) == (1.1, 1.5)
    assert report([row]).row_count == 1
