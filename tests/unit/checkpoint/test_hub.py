"""hf: references against the real huggingface_hub, offline, with a cache made by hand."""

import sys
from pathlib import Path

import huggingface_hub.constants
import pytest

from pipeline.checkpoint import store
from pipeline.checkpoint.model import load_card
from pipeline.errors import ModelError
from tests.tiny_models import write_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache of a machine without a network."""
    folder = tmp_path / "hub"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return folder


def add_snapshot(hub: Path) -> Path:
    repo = hub / "models--org--Tiny-Instruct"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    return write_folder(repo / "snapshots" / COMMIT)


def test_the_offline_cache_is_used_and_the_model_named_after_its_repository(hub: Path) -> None:
    snapshot = add_snapshot(hub)
    card = load_card("hf:org/Tiny-Instruct")
    assert (card.name, card.path, card.format) == ("Tiny-Instruct", snapshot, "folder")
    assert [model.reference for model in store.list_models()] == ["hf:org/Tiny-Instruct"]


def test_known_once_it_is_not_asked_for_again(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = add_snapshot(hub)
    store.resolve("hf:org/Tiny-Instruct")
    monkeypatch.setattr(store, "fetch_repo", lambda source: pytest.fail("asked the hub"))
    assert store.resolve("hf:org/Tiny-Instruct") == snapshot


def test_absent_and_offline_says_so(hub: Path) -> None:
    with pytest.raises(ModelError, match=r"hf:org/absent@v1 is not in the hub's cache .* HF_HUB_OFFLINE"):
        store.resolve("hf:org/absent@v1")
    assert store.list_models() == []


def test_without_the_extra_it_says_how_to_get_it(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"pip install 'stageline\[hub\]'"):
        store.resolve("hf:org/Tiny-Instruct")
