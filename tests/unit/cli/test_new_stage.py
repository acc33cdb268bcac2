"""What new-stage writes works as it is, in every place of the graph; and what it refuses, and how."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.messages import Cancel, TextBatch
from pipeline.scaffold.place import Place, between, in_place_of, of_types
from pipeline.scaffold.words import MESSAGES

ROOT = Path(__file__).parents[3]
PLACES = {
    "calm": ["--between", "detokenize", "stream"],
    "early": ["--between", "ingress", "tokenize"],
    "notes": ["--between", "tokenize", "schedule"],
    "my_text": ["--in-place-of", "detokenize"],
    "my_tokens": ["--takes", "StepHandle", "--gives", "SampledBatch"],
    "my_filter": ["--in-place-of", "filter"],
    "my_schedule": ["--in-place-of", "schedule"],
    "my_stream": ["--in-place-of", "stream"],
    "my_prompts": ["--in-place-of", "tokenize"],
    "my_device": ["--in-place-of", "execute"],
}
USER = """
[tool.ruff]
line-length = 110
lint.select = ["E", "F", "I", "UP", "B", "PT", "RUF"]
"""
CHECK_CONFIGS = (
    "-c",
    "import sys; from pipeline.__main__ import main\n"
    "for name in sys.argv[1:]: assert main(['check-config', '--config', f'{name}/config.toml']) == 0, name",
)


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MYPYPATH": str(ROOT), "COLUMNS": "200"}
    words = [sys.executable, *command]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stage for every place."""
    folder = tmp_path_factory.mktemp("lab")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, place in PLACES.items():
            assert main(["new-stage", name, *place]) == 0
    (folder / "pyproject.toml").write_text(USER)
    return folder


def test_every_stage_passes_its_own_test(written: Path) -> None:
    done = run(written, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PLACES)
    assert done.returncode == 0, done.stdout
    assert "32 passed" in done.stdout


def test_every_config_is_accepted_and_has_the_stage(written: Path) -> None:
    checked = run(written, *CHECK_CONFIGS, *PLACES)
    assert checked.returncode == 0, checked.stderr
    for name in PLACES:
        assert f"{name}.stage:" in checked.stdout


@pytest.mark.nightly
def test_they_are_typed_and_as_a_linter_would_have_them(written: Path) -> None:
    stages = [f"{name}/stage.py" for name in PLACES]
    typed = run(written, "-m", "mypy", "--strict", "--cache-dir", os.devnull, *stages)
    assert typed.returncode == 0, typed.stdout
    for words in (["check"], ["format", "--check"]):
        linted = run(written, "-m", "ruff", *words, "--no-cache", ".")
        assert linted.returncode == 0, linted.stdout


def test_it_says_what_is_where_and_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-stage", "calm", *PLACES["calm"]]) == 0
    said = capsys.readouterr().out
    for file in (tmp_path / "calm").iterdir():
        assert f"calm/{file.name}" in said
    for command in (
        "python -m pytest calm",
        "check-config --config calm/config.toml",
        "swap filter calm.stage:Calm",
    ):
        assert command in said


def test_in_another_folder_it_is_imported_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab").mkdir()
    assert main(["new-stage", "calm", *PLACES["calm"], "--in", "lab"]) == 0
    assert 'use = "lab.calm.stage:Calm"' in (tmp_path / "lab/calm/config.toml").read_text()
    elsewhere = tmp_path / "lab-2"
    elsewhere.mkdir()
    assert main(["new-stage", "calm", *PLACES["calm"], "--in", str(elsewhere)]) == 0
    assert 'use = "calm.stage:Calm"' in (elsewhere / "calm/config.toml").read_text()
    assert f"cd {elsewhere}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["calm"], "say where it stands"),
        (["calm", "--in-place-of", "stream", "--between", "detokenize", "stream"], "say where it stands"),
        (["calm", "--takes", "TextBatch"], "--takes and --gives go together"),
        (["calm", "--in-place-of", "detokenise"], "Did you mean detokenize"),
        (["calm", "--in-place-of", "ingress"], "ingress is sent no messages"),
        (
            ["calm", "--between", "stream", "detokenize"],
            "no data goes that way. It goes between: ingress tokenize,",
        ),
        (["calm", "--takes", "textbach", "--gives", "TextBatch"], "Did you mean TextBatch"),
        (["calm", "--takes", "StepPlan", "--gives", "StepHandle"], "execute is also sent DiskMoves,Reopen"),
        (["calm", "--takes", "TextBatch", "--gives", "TextBatch,Pause"], "no link from filter carries Pause"),
        (["calm", "--takes", "TextBatch", "--gives", "StepPlan"], "nothing stands between these"),
        (["stream", "--in-place-of", "stream"], "stream is taken: the graph has a stage of that name"),
        (["json", "--in-place-of", "stream"], "json is taken: Python finds a module of that name"),
        (["text_batch", "--in-place-of", "stream"], "its class would be called TextBatch"),
        (["Calm", "--in-place-of", "stream"], "'Calm' is no name for a stage"),
        (["class", "--in-place-of", "stream"], "'class' is no name for a stage"),
        (["there", "--in-place-of", "stream"], "there exists; nothing was written"),
        (["calm", "--in-place-of", "stream", "--in", "nowhere"], "--in nowhere: there is no such folder"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").write_text("mine")
    assert main(["new-stage", *words]) == 2
    assert message in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["there"]
    assert (tmp_path / "there").read_text() == "mine"


def test_an_unknown_message_is_answered_with_a_line_on_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-stage", "calm", "--takes", "Nothing", "--gives", "TextBatch"]) == 2
    lines = capsys.readouterr().err.splitlines()[1:]
    assert [line.split()[0] for line in lines] == sorted(MESSAGES)
    assert all(len(line.split()) > 3 for line in lines)


def test_the_same_place_by_its_neighbours_and_by_its_types() -> None:
    assert of_types(["TextBatch"], ["TextBatch"], "x") == between("detokenize", "stream", "x")
    with_cancel = of_types(["TextBatch"], ["TextBatch", "Cancel"], "x")
    assert with_cancel.gives == (TextBatch, Cancel)
    assert of_types(["TokenBatch"], ["TextBatch", "Cancel"], "x") == in_place_of("detokenize")


def test_a_new_place_has_the_room_that_was_before_its_target() -> None:
    place: Place = between("tokenize", "schedule", "notes")
    assert (place.node.name, place.node.inbox_bound, place.is_new) == ("notes", 64, True)
