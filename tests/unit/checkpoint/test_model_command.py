from pathlib import Path

import pytest

from pipeline.__main__ import main
from tests.tiny_models import write_folder, write_gguf


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_show_tells_what_a_model_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gguf(tmp_path / "Tiny-Instruct.F32.gguf")
    assert main(["model", "show", "Tiny-Instruct.F32.gguf"]) == 0
    shown = capsys.readouterr().out
    for fact in (
        "Tiny-Instruct",
        "gguf",
        "2 of 64",
        "4 of 16, 2 for",
        "256 tokens",
        "tied",
        "2 <|im_end|>",
        "yes",
    ):
        assert fact in shown


def test_show_counts_parameters_alike_in_both_formats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gguf(tmp_path / "a.gguf")
    write_folder(tmp_path / "[b]", num_shards=2)
    counts = set()
    for reference in ("a.gguf", "[b]"):
        assert main(["model", "show", reference]) == 0
        shown = capsys.readouterr().out
        assert reference in shown
        counts |= {line for line in shown.splitlines() if "parameters" in line}
    assert len({line.split("│")[2].strip() for line in counts}) == 1


def test_show_takes_the_model_of_config_toml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path / "mine")
    (tmp_path / "config.toml").write_text('[model]\nreference = "mine"\n')
    assert main(["model", "show"]) == 0
    assert "mine" in capsys.readouterr().out


def test_pull_prints_the_path_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path / "mine")
    assert main(["model", "pull", "mine"]) == 0
    assert capsys.readouterr().out == "mine\n"


def test_pull_refuses_a_model_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (write_folder(tmp_path / "mine") / "tokenizer.json").unlink()
    assert main(["model", "pull", "mine"]) == 1
    assert "tokenizer.json does not exist" in capsys.readouterr().err


def test_list_without_models_says_how_to_get_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "list"]) == 0
    assert "stageline model pull" in capsys.readouterr().out


@pytest.mark.parametrize("reference", ["hf:nobody", "./absent.gguf", "nobody/nothing"])
def test_a_bad_reference_names_what_is_allowed(reference: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "show", reference]) == 1
    assert "A model reference is one of" in capsys.readouterr().err
