"""Sources: where the messages of a benched stage come from, and the configuration it is benched under."""

import time
from collections.abc import Mapping
from typing import Any, cast

from msgspec.structs import replace

from pipeline import assemble
from pipeline.assemble import Blueprint
from pipeline.bench import at_the_door
from pipeline.bench.alone import Alone
from pipeline.bench.feeds import feed_for
from pipeline.bench.replay import Pace, PlansReplay, Replay, replay_feed
from pipeline.bench.samples import Load
from pipeline.bench.stand import WARM_UP, is_door
from pipeline.checkpoint.card import ModelCard
from pipeline.config import Config, StageConfig
from pipeline.errors import ConfigError
from pipeline.messages import DeviceReady
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.recording import Recording
from pipeline.runtime.testing import DEFAULT_CAPACITY, FakeRunner
from pipeline.topology import Node

_OF_A_DOOR = {"host": "127.0.0.1", "port": 0, "keys_file": None, "tls_cert": None, "tls_key": None}
"""A bench knows no keys, and asks from this machine."""


def blueprint_for(config: Config, stage: str) -> Blueprint:
    """The configuration, with this stage in its graph even where it is optional and not named there. Raises
    ConfigError.
    """
    if stage not in config.whole.names:
        known = ", ".join(config.whole.names)
        raise ConfigError(f"{config.origin}: there is no stage {stage!r} to bench; there are {known}")
    stages = dict(config.stages)
    if stage not in stages:
        node = next(node for node in config.whole.nodes if node.name == stage)
        stages[stage] = _as_if_named(node)
        config = replace(config, graph=config.whole.chosen(stages))
    if is_door(config.graph, stage):
        stages[stage] = replace(stages[stage], options=_open_door(stages[stage].options))
    return assemble.check(replace(config, stages=stages))


def _as_if_named(node: Node) -> StageConfig:
    return StageConfig(node.use, node.inbox_bound, node.workers or 1)


def _open_door(options: Mapping[str, Any]) -> dict[str, Any]:
    return {**options, **{name: _OF_A_DOOR[name] for name in ("host", "port")}} | {
        name: value for name, value in _OF_A_DOOR.items() if name in options
    }


def of_samples(
    blueprint: Blueprint,
    stage: str,
    card: ModelCard,
    *,
    num_rows: int,
    num_messages: int,
    fake_step_ms: float | None,
) -> Alone:
    """Messages as of a server under steady load.

    Args:
        fake_step_ms: see fake_runner; None: the device that config describes.
    """
    load, graph = Load.of(card, num_rows), blueprint.graph
    num_requests = num_messages + max(num_messages // 10, WARM_UP)

    def new_feed(pace: Pace) -> Any:
        if is_door(graph, stage):
            return at_the_door.samples(load, num_requests)
        return feed_for(stage, load, graph)

    runner = None if fake_step_ms is None else fake_runner(room_for(num_rows), fake_step_ms)
    return Alone(blueprint, stage, card, runner, new_feed, num_messages)


def of_recording(
    blueprint: Blueprint, stage: str, card: ModelCard, recording: Recording, *, fake_step_ms: float | None
) -> Alone:
    """A tenth of the recording warms up, the rest is measured. StagelineError: it is of another stage."""
    graph = blueprint.graph

    def new_feed(pace: Pace) -> "at_the_door.AtTheDoor | Replay":
        if is_door(graph, stage):
            return at_the_door.recorded(recording, pace)
        return replay_feed(recording, stage, graph, pace)

    feed = new_feed(Pace(None))
    needs = feed.needs if isinstance(feed, PlansReplay) else DEFAULT_CAPACITY
    needs = replace(needs, block_size=DEFAULT_CAPACITY.block_size)
    num_warm = feed.num_messages // 10
    return Alone(
        blueprint,
        stage,
        card,
        None if fake_step_ms is None else fake_runner(needs, fake_step_ms),
        new_feed,
        feed.num_messages - num_warm,
        num_warm,
        recording.header.begin_ns,
    )


def fake_runner(capacity: DeviceReady, step_ms: float = 0.0) -> RunnerFactory:
    """One that computes nothing, for so long."""
    wait = (lambda plan: time.sleep(step_ms / 1e3)) if step_ms else None
    return RunnerFactory(lambda: cast(Any, FakeRunner(capacity, wait)))


def room_for(num_rows: int) -> DeviceReady:
    """A fake device's, for so many rows a step."""
    return replace(DEFAULT_CAPACITY, max_num_seqs=num_rows, num_blocks=max(4096, 32 * num_rows))
