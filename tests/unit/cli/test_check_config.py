from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.topology import NODES


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def check(tmp_path: Path, text: str) -> int:
    path = tmp_path / "my.toml"
    path.write_text(text)
    return main(["check-config", "--config", str(path)])


@pytest.mark.usefixtures("wide")
def test_it_shows_what_would_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, "[stages.schedule.options]\ncredits = 3\n[stages.tokenize]\nworkers = 5") == 0
    shown = capsys.readouterr().out
    assert all(node.name in shown for node in NODES)
    assert "credits = 3" in shown
    assert "pipeline.stages.tokenize:" in shown
    assert "no fault found" in shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[stages.schedule.options]\ncredits = "x"',
            'stages.schedule.options.credits = "x": must be int, not str',
        ),
        ("[stages.sample.options]\np = 1", "stages.sample.options.p: no such key. Allowed: none"),
        ("[device]\nblock_size = 3", "device.block_size = 3: must be one of 8, 16, 32, 64, 128"),
        ('[stages.sample]\nuse = "nowhere:Sample"', "stages.sample.use"),
        ('[stages.sample]\nuse = "pathlib:Path"', "must be a subclass of pipeline.runtime.stage.Stage"),
        ('[stages.sample]\nuse = "pipeline.stages.stream:Stream"', "`takes` must also have"),
        ("[model]\nmax_model_len = 0", "model.max_model_len = 0: must be at least 1"),
    ],
)
def test_a_fault_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    assert check(tmp_path, text) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("stageline: ") and "my.toml: " in shown.err
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
