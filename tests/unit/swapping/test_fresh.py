"""A module that was edited is read again; what is not, is not."""

import importlib
import os
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from pipeline.swapping.fresh import Sources


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with two modules, of which one imports the other."""
    folder = tmp_path / "swapped_lab"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    write(folder / "words.py", "WORD = 'first'", -60)
    write(folder / "stage.py", "from swapped_lab.words import WORD\nclass Stage: word = WORD", -60)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.startswith("swapped_lab")]:
        del sys.modules[name]


def write(path: Path, text: str, age_s: float) -> None:
    path.write_text(text)
    os.utime(path, (time.time() + age_s,) * 2)


def read() -> ModuleType:
    return importlib.import_module("swapped_lab.stage")


def test_an_edited_module_is_another_one_and_the_first_is_as_it_was(lab: Path) -> None:
    sources, first = Sources(), read()
    sources.forget_changed("swapped_lab.stage:Stage")
    assert read() is first
    write(lab / "stage.py", "class Stage: word = 'a second one'", 60)
    sources.forget_changed("swapped_lab.stage:Stage")
    second = read()
    assert second is not first
    assert (first.Stage.word, second.Stage.word) == ("first", "a second one")


def test_what_it_imports_of_its_own_package_is_read_again_too(lab: Path) -> None:
    sources, first = Sources(), read()
    write(lab / "words.py", "WORD = 'a second one'", 60)
    sources.forget_changed("swapped_lab.stage:Stage")
    assert read().Stage.word == "a second one" and first.Stage.word == "first"


def test_stageline_itself_is_never_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.stages import sample

    monkeypatch.setattr(Sources, "_has_changed", lambda self, name: True)
    Sources().forget_changed("pipeline.stages.sample:Sample")
    assert sys.modules["pipeline.stages.sample"] is sample
