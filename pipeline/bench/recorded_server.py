"""The server of bench.alone_against_live: a real one, whose stages are all recorded, in a process of its own.

    python -m pipeline.bench.recorded_server SETTINGS

SETTINGS is JSON. It prints the port that it opened, as one line, and serves until its standard input ends.
Then the recordings are in the folder, and LIVE beside them says what the trace holds of the same time.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import msgspec
import uvloop
from msgspec.structs import replace

from pipeline import assemble, logs
from pipeline.bench.cores import place_children, place_threads
from pipeline.bench.sources import fake_runner
from pipeline.checkpoint.fake import byte_card
from pipeline.checkpoint.model import load_card
from pipeline.config import Config, load, override
from pipeline.errors import StagelineError
from pipeline.recordings.wanted import Wanted
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.testing import DEFAULT_CAPACITY
from pipeline.runtime.trace import Point, TracePoint

LIVE = "live.json"
MAX_BYTES, MAX_S = 1 << 30, 3600.0
"""Of each recording."""
_POINTS = 1 << 21


class ServerSettings(msgspec.Struct, frozen=True):
    folder: str
    config: str | None = None
    model: str | None = None
    fake_step_ms: float | None = None
    """A byte tokenizer, and a device whose steps take so long and compute nothing; None: as configured."""
    cores: list[int] | None = None
    """Of its threads;"""
    device_cores: list[int] | None = None
    """and of the device workers' process, where there is one."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """One call of a stage's handle(), as the trace holds it."""

    begin_ns: int
    took_ns: int
    num_messages: int


def config_of(settings: ServerSettings) -> Config:
    """As it is, on any free port, with room for what is recorded. Raises ConfigError."""
    config = override(
        load(Path(settings.config) if settings.config else None),
        model=settings.model,
        host="127.0.0.1",
        port=0,
        admin_port="off",
    )
    trace = replace(
        config.trace,
        enabled=True,
        capacity=_POINTS,
        record=(),
        record_dir=settings.folder,
        record_max_bytes=MAX_BYTES,
        record_max_s=MAX_S,
        record_redacted=False,
    )
    return replace(config, trace=trace)


def spans_of(points: Sequence[TracePoint]) -> dict[str, list[Span]]:
    """By stage."""
    spans: dict[str, list[Span]] = {}
    for begin_ns, point, name, took_ns, count in points:
        if point == Point.HANDLED:
            spans.setdefault(name, []).append(Span(begin_ns, took_ns, count))
    return spans


async def serve(settings: ServerSettings) -> None:
    """Until standard input ends, or is written to."""
    config = config_of(settings)
    card = byte_card() if settings.fake_step_ms is not None else load_card(config.model.reference)
    pipeline = assemble.build(assemble.check(config), card, _runner(settings))
    until, is_ready = asyncio.Event(), asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_recorded(pipeline, settings, is_ready, until))
            await pipeline.supervisor.run(until, is_ready.set)
    except* StagelineError as faults:
        raise faults.exceptions[0]  # noqa: B904 - it keeps its own __cause__


async def _recorded(
    pipeline: assemble.Pipeline, settings: ServerSettings, is_ready: asyncio.Event, until: asyncio.Event
) -> None:
    await is_ready.wait()
    _place(settings)
    names = [name for name in pipeline.graph.names if pipeline.stages[name][0].takes]
    begun_ns = perf_counter_ns()
    begun = {name: await pipeline.recordings.begin(Wanted(f"->{name}", is_redacted=False)) for name in names}
    is_over, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), is_over.set)
    ingress: Any = pipeline.stages["ingress"][0]
    print(ingress.port, flush=True)
    await is_over.wait()
    loop.remove_reader(sys.stdin.fileno())
    live = spans_of(pipeline.trace.points(begun_ns))
    folder = Path(settings.folder)
    for name, state in begun.items():
        await pipeline.recordings.end(state.id)
        (folder / state.id).rename(folder / f"{name}.rec")
    (folder / LIVE).write_bytes(msgspec.json.encode(live))
    until.set()


def _runner(settings: ServerSettings) -> RunnerFactory | None:
    if settings.fake_step_ms is None:
        return None
    return fake_runner(DEFAULT_CAPACITY, settings.fake_step_ms)


def _place(settings: ServerSettings) -> None:
    """Bind what runs by now: threads of this process, and those of its children."""
    if settings.cores is None:
        return
    place_threads(os.getpid(), settings.cores)
    place_children(os.getpid(), settings.device_cores or settings.cores)


def main() -> int:
    """0 after a drain; 1 if it could not serve."""
    settings = msgspec.json.decode(sys.argv[1], type=ServerSettings)
    logs.configure("warning", "text")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(serve(settings))
        except StagelineError as error:
            print(f"bench server: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
