"""The token: its file, who may read it, what it admits."""

from pathlib import Path

import pytest

from pipeline.admin_token import AdminToken, authorization, token_path
from pipeline.errors import StagelineError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_whoever_reads_the_file_is_admitted() -> None:
    token = AdminToken()
    token.write(8001)
    assert token_path(8001).stat().st_mode & 0o777 == 0o600
    assert token.admits(authorization(8001))
    for header in (
        None,
        "",
        "Bearer ",
        "Basic " + authorization(8001)[7:],
        authorization(8001) + "x",
        "Bearer \xff",
    ):
        assert not token.admits(header)
    token.remove()
    token.remove()
    with pytest.raises(StagelineError, match="allow_swap = true"):
        authorization(8001)


def test_a_file_that_was_there_before_is_not_written_through(folder: Path) -> None:
    path, elsewhere = token_path(8001), folder / "elsewhere"
    path.parent.mkdir()
    elsewhere.write_text("mine")
    path.symlink_to(elsewhere)
    AdminToken().write(8001)
    assert not path.is_symlink() and elsewhere.read_text() == "mine"


def test_a_folder_that_is_none(folder: Path) -> None:
    (folder / "stageline").write_text("")
    with pytest.raises(StagelineError, match="cannot be written"):
        AdminToken().write(8001)


def test_without_a_runtime_folder_it_is_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert token_path(1) == tmp_path / "cache" / "stageline" / "admin-1.token"
