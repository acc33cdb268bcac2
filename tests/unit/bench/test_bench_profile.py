"""Profiles are files that need nothing else."""

import pstats
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.bench.profile.cpu import cpu
from pipeline.errors import ConfigError

FETCHED = ('src="http', "src='http", 'href="http', "url(http", "@import", "fonts.googleapis")


def bench(kind: str, out: Path, steps: int = 400) -> int:
    argv = ["bench", "detokenize", "--fake", "--rows", "16", "--steps", str(steps)]
    return main([*argv, "--profile", kind, "--out", str(out)])


@pytest.mark.parametrize("kind", ["wall", "memory"])
def test_a_page_loads_nothing(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.html"
    assert bench(kind, out) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"profile: {out}"
    page = out.read_text("utf-8")
    assert not [each for each in FETCHED if each in page]
    assert "detokenize" in page or "detok.py" in page


def test_calls_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.prof"
    assert bench("cprofile", out) == 0
    calls: Any = pstats.Stats(str(out)).stats  # type: ignore[attr-defined]
    counted = {name: count for (_, _, name), (count, *_) in calls.items()}
    assert counted["_to_text"] == 400


@pytest.mark.nightly
def test_a_flame_graph_or_why_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether a process may look into another is the machine's to say."""
    out = tmp_path / "out.svg"
    if bench("cpu", out, steps=20_000) == 0:
        assert out.read_text("utf-8").startswith("<?xml")
    else:
        assert "SYS_PTRACE" in capsys.readouterr().err


def test_a_missing_program_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *args, **kwargs: None)
    with pytest.raises(ConfigError, match=r"pip install 'stageline\[profile\]'"):
        cpu(tmp_path / "out.svg")


def test_the_file_is_named_after_stage_and_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "sample", "--fake", "--steps", "50", "--profile", "cprofile"]) == 0
    assert (tmp_path / "sample-cprofile.prof").exists()
