"""Sides: two classes for one place of the graph."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from pipeline import assemble
from pipeline.assemble import Blueprint, StageClass
from pipeline.bench.stand import Stand, build_stand
from pipeline.checkpoint.card import ModelCard
from pipeline.config import Config
from pipeline.core.import_path import resolve
from pipeline.errors import ConfigError, StagelineError
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.stage import NoOptions

BUILT_IN = "builtin"
CONFIGURED = "config"


@dataclass(frozen=True)
class Side:
    """One of the two. Each stand that it makes is a stage that has seen nothing."""

    name: str
    """a or b."""
    stage: str
    blueprint: Blueprint
    card: ModelCard
    runner: RunnerFactory | None
    """In the place of the one that config describes."""

    @property
    def stage_class(self) -> StageClass:
        return self.blueprint.classes[self.stage]

    @property
    def use(self) -> str:
        return f"{self.stage_class.__module__}:{self.stage_class.__qualname__}"

    def stand(self, trace_points: int) -> Stand:
        return build_stand(self.blueprint, self.stage, self.card, self.runner, trace_points=trace_points)

    def __str__(self) -> str:
        return f"{self.name} ({self.use})"


def variant(
    configured: Blueprint, stage: str, use: str, options: Mapping[str, Any], origin: str
) -> Blueprint:
    """With another class in the place of one stage. Raises ConfigError, which begins with `origin`.

    Args:
        use: an import path, BUILT_IN or CONFIGURED.
        options: set over those of config, where the class takes such options; else over its defaults.
    """
    config = configured.config
    if stage not in config.stages:
        names = ", ".join(config.stages)
        raise ConfigError(f"{config.origin}: has no stage {stage!r}; its stages are {names}")
    path = _path(config, stage, use)
    was = configured.classes[stage].Options
    is_alike = issubclass(getattr(resolve(f"{origin}: stages.{stage}.use", path), "Options", NoOptions), was)
    kept = config.stages[stage].options if is_alike else {}
    swapped = replace(config.stages[stage], use=path, options={**kept, **options})
    return assemble.check(replace(config, origin=origin, stages={**config.stages, stage: swapped}))


def _path(config: Config, stage: str, use: str) -> str:
    if use == CONFIGURED:
        return config.stages[stage].use
    if use == BUILT_IN:
        return next(node.use for node in config.graph.nodes if node.name == stage)
    return use


def reason_of(error: Exception) -> str:
    """In words; of a group that task groups have made, that of the one that began it."""
    if isinstance(error, ExceptionGroup):
        return reason_of(error.exceptions[0])
    return str(error) if isinstance(error, StagelineError) else repr(error)


def unseen(a: Side, b: Side) -> str:
    """What of two sides is not compared; empty: nothing."""
    op_a, op_b = (getattr(side.stage_class, "device_op", "") for side in (a, b))
    if op_a == op_b:
        return ""
    return f"Only what runs in the stage is compared: not what it has the device do ({op_a} against {op_b})."
