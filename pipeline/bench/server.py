"""The server of `bench pipeline`: all stages, with a runner that costs nothing, in a process of its own.

    python -m pipeline.bench.server SETTINGS

SETTINGS is JSON. It prints the port that it opened, as one line, and serves until its standard input ends,
so that it never outlives the bench that started it.
"""

import asyncio
import cProfile
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import msgspec
import uvloop
from msgspec.structs import replace

from pipeline import assemble, logs
from pipeline.bench import cores
from pipeline.bench.recording_cost import RecordingCost
from pipeline.bench.seeing import seeing
from pipeline.bench.turns import Turns
from pipeline.checkpoint.fake import byte_card
from pipeline.config import Config, load
from pipeline.errors import ConfigError, StagelineError
from pipeline.messages import DeviceReady
from pipeline.recordings.places import place_named
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.testing import FakeRunner

HOST = "127.0.0.1"


class ServerSettings(msgspec.Struct, frozen=True):
    capacity: DeviceReady
    config: str | None = None
    stream_options: dict[str, int | float] = {}
    """Over those of the config."""
    cores: list[int] | None = None
    measures_seeing: bool = False
    """See bench.seeing."""
    recorded: str | None = None
    """A link; see bench.recording_cost."""
    profile: str | None = None
    """Where cProfile's figures of the loop's thread go."""


def blueprint_of(settings: ServerSettings) -> assemble.Blueprint:
    """The configuration as it is, on any free port. Raises ConfigError."""
    config = load(Path(settings.config) if settings.config else None)
    options: dict[str, dict[str, Any]] = {
        "ingress": {"host": HOST, "port": 0},
        "schedule": {"prefix_cache": False},  # all clients ask the same: each is to be served in full
        "stream": dict(settings.stream_options),
    }
    blueprint = assemble.check(_with(config, options))
    if settings.recorded:
        _check_link(blueprint, settings.recorded)
    return blueprint


def _check_link(blueprint: assemble.Blueprint, link: str) -> None:
    try:
        place_named(blueprint.graph, link)
    except ValueError as error:
        raise ConfigError(f"--recording: {error}") from error


def _with(config: Config, options: dict[str, dict[str, Any]]) -> Config:
    stages = {
        name: replace(stage, options=stage.options | options.get(name, {}))
        for name, stage in config.stages.items()
    }
    return replace(config, stages=stages)


async def serve(settings: ServerSettings) -> None:
    """Until standard input ends, or is written to."""
    turns = Turns()
    before_step = turns.count if settings.measures_seeing or settings.recorded else None
    runner = RunnerFactory(lambda: cast(Any, FakeRunner(settings.capacity, before_step)))
    pipeline = assemble.build(blueprint_of(settings), byte_card(), runner)
    if settings.measures_seeing:
        turns.take(seeing(pipeline))
        await _run(pipeline)
        print(turns.report("seeing"), file=sys.stderr)
    elif settings.recorded:
        with TemporaryDirectory() as folder:
            cost = RecordingCost(pipeline, byte_card(), settings.recorded, Path(folder))
            turns.take(await cost.begin())
            await _run(pipeline)
            print(await cost.end(), turns.report("recording"), sep="\n", file=sys.stderr)
    else:
        await _run(pipeline)


async def _run(pipeline: assemble.Pipeline) -> None:
    until = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, until.set)  # Ctrl-C reaches this process too: it drains
    loop.add_reader(sys.stdin.fileno(), until.set)
    ingress: Any = pipeline.stages["ingress"][0]
    await pipeline.supervisor.run(until, lambda: print(ingress.port, flush=True))
    loop.remove_reader(sys.stdin.fileno())


def main() -> int:
    """0 after a drain; 1 if it could not serve."""
    settings = msgspec.json.decode(sys.argv[1], type=ServerSettings)
    if settings.cores is not None:
        cores.keep_to(set(settings.cores))
    logs.configure("warning", "text")
    profile = cProfile.Profile() if settings.profile else None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if profile is not None:
            profile.enable()
        try:
            runner.run(serve(settings))
        except StagelineError as error:
            print(f"bench server: {error}", file=sys.stderr)
            return 1
    if profile is not None and settings.profile is not None:
        profile.disable()
        profile.dump_stats(settings.profile)
    return 0


if __name__ == "__main__":
    sys.exit(main())
