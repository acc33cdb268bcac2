"""What stages show: that of those which serve now, once, and of a class that is there twice the sum."""

from typing import Any

import pytest

from pipeline import assemble
from pipeline.assemble import Pipeline
from pipeline.checkpoint.fake import byte_card
from pipeline.config import loads
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.testing import FakeRunner
from pipeline.stages.detokenize import Detokenize


class Showing(Detokenize):
    value = 0.0

    def gauges(self) -> dict[str, float]:
        return {"shown": self.value}


@pytest.fixture
def pipeline() -> Pipeline:
    config = loads("[stages.ingress.options]\nport = 0\n[stages.tokenize]\nworkers = 2\n", "the test")
    return assemble.build(assemble.check(config), byte_card(), RunnerFactory(FakeRunner))


def showing(pipeline: Pipeline, name: str, *values: float) -> None:
    """Put stages that show these in the place of those that are there."""
    (like,) = pipeline.stages["detokenize"]
    made: list[Any] = [Showing(like.ctx, like.options) for _ in values]
    for stage, value in zip(made, values, strict=True):
        stage.value = value
    pipeline.stages[name][:] = made


def shown(pipeline: Pipeline) -> list[str]:
    lines = pipeline.telemetry.render().decode().splitlines()
    return [line for line in lines if line.startswith("stageline_shown ")]


def test_who_serves_now_is_asked(pipeline: Pipeline) -> None:
    assert shown(pipeline) == []
    for value in (3.0, 5.0):
        showing(pipeline, "detokenize", value)
        assert shown(pipeline) == [f"stageline_shown {value}"]


def test_a_pool_and_two_stages_of_a_class_add_up(pipeline: Pipeline) -> None:
    showing(pipeline, "tokenize", 1.0, 2.0)
    assert shown(pipeline) == ["stageline_shown 3.0"]
    showing(pipeline, "stream", 4.0)
    assert shown(pipeline) == ["stageline_shown 7.0"]
