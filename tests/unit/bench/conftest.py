import gc
from collections.abc import Callable

import pytest

from pipeline.assemble import StageClass
from tests.unit.bench import sides


@pytest.fixture
def little_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """To collect all of a test process's for each stand would take most of the time of a short test."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.fixture
def candidate(monkeypatch: pytest.MonkeyPatch) -> Callable[[StageClass], str]:
    """Gives a class an import path."""

    def path(stage_class: StageClass) -> str:
        monkeypatch.setattr(sides, "Candidate", stage_class, raising=False)
        return f"{sides.__name__}:Candidate"

    return path
