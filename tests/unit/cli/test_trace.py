from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.cli.trace import duration_s


def test_the_trace_is_saved_and_counted(
    server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert main(["trace", str(out), "--url", f"{server.url}/", "--last", "2500ms"]) == 0
    assert b"traceEvents" in out.read_bytes()
    assert server.queries == ["last_s=2.5"]
    shown = capsys.readouterr().out
    assert "2 events" in shown and "ui.perfetto.dev" in shown


def failure(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["trace", *args]) == 1
    error = capsys.readouterr().err
    assert error.startswith("stageline: ") and error.count("\n") == 1
    return error


def test_failures_are_one_line(server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out.json")
    assert "no server at http://127.0.0.1:9" in failure(capsys, out, "--url", "http://127.0.0.1:9")
    assert "answered 404: Not Found" in failure(capsys, out, "--url", f"{server.url}/nowhere")
    assert "answered 400: last_s is wrong" in failure(capsys, out, "--url", server.url, "--last", "1h")
    assert "did not send a trace" in failure(capsys, out, "--url", f"{server.url}/other")
    assert "must begin with http://" in failure(capsys, out, "--url", "file:///etc")
    assert "cannot be written" in failure(capsys, str(tmp_path), "--url", server.url)
    assert not Path(out).exists()


@pytest.mark.parametrize(
    ("text", "value_s"), [("30s", 30), ("500ms", 0.5), ("2m", 120), ("12", 12), ("1.5 s", 1.5), ("1H", 3600)]
)
def test_times(text: str, value_s: float) -> None:
    assert duration_s(text) == pytest.approx(value_s)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", "30x", "s", "1.2.3s", "61m"])
def test_what_is_no_time_is_said(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["trace", "out.json", f"--last={value}"])
    assert raised.value.code == 2
    error = capsys.readouterr().err
    assert "--last" in error and repr(value) in error
