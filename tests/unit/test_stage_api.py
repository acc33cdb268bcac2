"""The stage API: what authors may rely on is written down, versioned, and checked by types."""

import difflib
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from pipeline import assemble, config
from pipeline.errors import ConfigError
from pipeline.stage_api import STAGE_API
from pipeline.stages.sample import Sample
from tests.surface import FILE, surface

CHANGED = f"""
The stage API is not what {FILE.name} says. Would a stage that was written before work no more? Then raise
STAGE_API in pipeline/runtime/stage.py and say in docs/stages.md what has changed. In any case:
python -m tests.surface
"""


def test_the_surface_is_as_it_was_written_down() -> None:
    diff = difflib.unified_diff(
        FILE.read_text().splitlines(), surface().splitlines(), "written down", "now", lineterm="", n=2
    )
    changes = "\n".join(diff)
    assert not changes, f"{CHANGED}\n{changes}"


class Older(Sample):
    api: ClassVar[int] = STAGE_API - 1


class Current(Sample):
    api: ClassVar[int] = STAGE_API


def checked(name: str) -> assemble.Blueprint:
    return assemble.check(config.loads(f'[stages.sample]\nuse = "{__name__}:{name}"', "my.toml"))


def test_a_stage_of_another_version_is_refused() -> None:
    assert checked("Current").classes["sample"] is Current
    with pytest.raises(ConfigError) as refused:
        checked("Older")
    assert f"stages.sample.use = '{__name__}:Older'" in str(refused.value)
    assert f"version {STAGE_API - 1} of the stage API; this server has version {STAGE_API}" in str(
        refused.value
    )


STAGE = """
from collections.abc import Sequence

from pipeline.messages import Cancel, FinishReason, TextBatch
from pipeline.stage_api import NoOptions, Stage


class Mine(Stage[TextBatch, NoOptions]):
    takes = (TextBatch,)
    gives = (TextBatch, Cancel)

    async def handle(self, batch: Sequence[{taken}]) -> None:
        for step in batch:
            await self.ctx.outlet(TextBatch).send({sent})
            self.ctx.outlet(Cancel).post({posted})
"""
RIGHT = {"taken": "TextBatch", "sent": "step", "posted": "Cancel(1, FinishReason.STOP)"}
WRONG = {
    "taken": ("Cancel", 'error: Argument 1 of "handle" is incompatible with supertype "'),
    "sent": (
        "Cancel(1, FinishReason.STOP)",
        'error: Argument 1 to "send" of "Outlet" has incompatible type "Cancel"',
    ),
    "posted": ("step", 'error: Argument 1 to "post" of "Outlet" has incompatible type "TextBatch"'),
}


def test_mypy_sees_a_wrong_message_type(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(STAGE.format(**RIGHT))
    for place, (wrong, _) in WRONG.items():
        (tmp_path / f"{place}.py").write_text(STAGE.format(**RIGHT | {place: wrong}))
    settings = [
        "--config-file",
        str(Path("pyproject.toml").absolute()),
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    said = subprocess.run(
        [sys.executable, "-m", "mypy", *settings, *map(str, tmp_path.glob("*.py"))],
        capture_output=True,
        text=True,
        check=False,
    )
    faults = [line for line in said.stdout.splitlines() if "error:" in line]
    assert {Path(line.partition(":")[0]).stem for line in faults} == set(WRONG), said
    for place, (_, fault) in WRONG.items():
        assert any(f"{place}.py" in line and fault in line for line in faults), said.stdout
