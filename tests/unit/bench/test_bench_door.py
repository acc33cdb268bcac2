"""The bench of the door runs, and what it measures is what it says."""

import asyncio

import pytest

from pipeline.bench import door


def test_everything_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"ROUNDS": 2, "CALLS": 2, "DOOR_ROUNDS": 1, "NUM_PIPELINED": 2, "NUM_KEYS": 3}.items():
        monkeypatch.setattr(door, name, value)
    monkeypatch.setattr(door.logs, "configure", lambda level, form: None)
    monkeypatch.setattr(door.uvloop, "run", asyncio.run)
    door.main()
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.endswith(" us")]) == 9


def test_the_filter_is_one_that_finds_its_terms() -> None:
    pytest.importorskip("re2", reason="google-re2 is not installed (the extra `filter`)")
    scan = door.filter_scan(door.PIECE)
    assert scan() == door.PIECE
    assert door.filter_scan(f"{door.PIECE}word07that is not there")() == door.PIECE + "[removed]"
