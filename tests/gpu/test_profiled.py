from pathlib import Path

import msgspec
import pytest

from pipeline.bench.samples import Load, step_plan, steps
from pipeline.checkpoint.card import ModelCard
from pipeline.gpu.profiled import ProfiledRunner
from pipeline.runtime.testing import DEFAULT_CAPACITY, FakeRunner


@pytest.fixture
def runner(tmp_path: Path) -> ProfiledRunner:
    return ProfiledRunner(FakeRunner(), tmp_path / "steps.html")


def launch(runner: ProfiledRunner, card: ModelCard, count: int) -> None:
    load = Load.of(card, 2)
    for step_id, rows in zip(range(1, count + 1), steps(load), strict=False):
        assert len(runner.launch(step_plan(load, step_id, rows, 1)).token_ids_sync()) == 2


def test_steps_are_profiled_from_watch_to_leave(
    runner: ProfiledRunner, fake_card: ModelCard, tmp_path: Path
) -> None:
    assert runner.capacity == DEFAULT_CAPACITY
    assert runner.mover is None
    launch(runner, fake_card, 3)
    assert not list(tmp_path.iterdir())
    runner.watch()
    launch(runner, fake_card, 4)
    runner.leave()
    launch(runner, fake_card, 2)
    page = (tmp_path / "steps.html").read_text("utf-8")
    assert "4 steps" in page
    assert "launch of a step" in page
    assert "http" not in page
    assert msgspec.json.decode((tmp_path / "steps.trace.json").read_bytes())["traceEvents"]


def test_closing_ends_it_too(runner: ProfiledRunner, fake_card: ModelCard, tmp_path: Path) -> None:
    runner.watch()
    launch(runner, fake_card, 1)
    runner.close()
    assert (tmp_path / "steps.html").exists()
