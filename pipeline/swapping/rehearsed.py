"""Rehearsed: what the process of a rehearsal does. The device is a fake one.

The stage that runs takes sample messages on its stand, is swapped for the other one as it would be in the
server, and that one takes more.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from pipeline import assemble, logs
from pipeline import config as configuration
from pipeline.bench.feeds import feed_for
from pipeline.bench.samples import Load
from pipeline.bench.stand import Feed, Stand, build_stand
from pipeline.checkpoint.words import path_of_text
from pipeline.config import Config
from pipeline.errors import ConfigError, StagelineError, SwapRefused
from pipeline.messages import StepHandle
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.handover import have_same_state
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.supervisor import Supervisor
from pipeline.runtime.swap import swap
from pipeline.runtime.swapped import Bounds, Ending, reason_of
from pipeline.runtime.testing import FakeRunner
from pipeline.swapping.rehearsal import Outcome, Words

BOUNDS = Bounds(start_s=20.0, batch_s=2.0, trial_s=0.0, trial_batches=20, max_trial_s=2.0)
NUM_BEFORE, NUM_MEANWHILE, NUM_AFTER, NUM_ROWS = 30, 10, 100, 8
_FEED_S = 15.0


def main() -> None:
    """Reads Words, writes an Outcome; what the stage prints goes to stderr."""
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    words = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Words, dec_hook=path_of_text)
    sys.path[:] = words.path
    logs.configure("warning", "text")
    outcome = Outcome(_outcome(words))
    os.write(out, msgspec.json.encode(outcome))
    os._exit(0)  # threads that a stage left behind do not matter here


def _outcome(words: Words) -> str:
    try:
        asyncio.run(_rehearse(words))
    except BaseException as error:  # also SystemExit of a module that is imported
        first = _first(error)
        if isinstance(first, ConfigError):
            return str(first)
        return f"in its rehearsal: {first if isinstance(first, StagelineError) else reason_of(first)}"
    return ""


def _fake_runner() -> Any:
    return FakeRunner()


async def _rehearse(words: Words) -> None:
    now = _config(words)
    stage = replace(now.stages[words.stage], use=words.use, options=words.options)
    after = assemble.check(replace(now, stages=now.stages | {words.stage: stage}))
    before = _runs_now(now) or after
    stand = build_stand(before, words.stage, words.card, RunnerFactory(_fake_runner))
    feed = feed_for(words.stage, Load.of(words.card, NUM_ROWS), before.graph)
    make, options = after.classes[words.stage], after.options[words.stage]
    moves_state = have_same_state(before.classes[words.stage], make)
    async with _running(stand, feed, before) as supervisor:
        if moves_state:  # else it would have to wait for the end of requests that have none
            await _feed(stand, feed, NUM_BEFORE)
        ctx = stand.stages[0].ctx
        swapping = asyncio.ensure_future(
            swap(supervisor, supervisor.crews[0], lambda held: make(held, options), ctx, BOUNDS)
        )
        while moves_state and not swapping.done():  # so that the trial has something to handle
            await _feed(stand, feed, NUM_MEANWHILE)
        swapped = await swapping
        if swapped.ending is not Ending.SWAPPED:
            raise SwapRefused(swapped.reason)
        await _feed(stand, feed, NUM_AFTER)


def _runs_now(config: Config) -> assemble.Blueprint | None:
    """None: the running stage's code was edited since, and does not fit any more. It is not what is tried."""
    try:
        return assemble.check(config)
    except ConfigError:
        return None


@asynccontextmanager
async def _running(stand: Stand, feed: Feed, blueprint: assemble.Blueprint) -> AsyncIterator[Supervisor]:
    """The stage under a supervisor, and sinks that look at what it gives."""
    until, ready = asyncio.Event(), asyncio.Event()
    supervisor = Supervisor([stand.stages], _FEED_S, structlog.get_logger())
    async with asyncio.TaskGroup() as group:
        sinks = [
            group.create_task(_sink(stand, feed, target, inbox, blueprint))
            for target, inbox in stand.targets.items()
        ]
        running = group.create_task(supervisor.run(until, ready.set))
        await ready.wait()
        yield supervisor
        feed.end(stand)
        until.set()
        await running
        for sink in sinks:
            sink.cancel()


async def _sink(
    stand: Stand, feed: Feed, target: str, inbox: Inbox[Any], blueprint: assemble.Blueprint
) -> None:
    carried = {link.carries for link in blueprint.graph.links if link.target == target}
    while batch := await inbox.recv_many():
        for message in batch:
            if _type_of(message) not in carried:
                names = ", ".join(sorted(kind.__name__ for kind in carried))
                raise SwapRefused(f"it sent a {type(message).__name__} to {target}, which takes {names}")
            feed.gave(stand, message)


def _type_of(message: object) -> type:
    """As links name it: StepHandle is a Protocol."""
    return StepHandle if hasattr(message, "token_ids_sync") else type(message)


async def _feed(stand: Stand, feed: Feed, num_messages: int) -> None:
    try:
        async with asyncio.timeout(_FEED_S):
            await feed.send(stand, num_messages)
    except TimeoutError as error:
        raise SwapRefused(f"it did not answer all messages within {_FEED_S:g} s") from error


def _config(words: Words) -> Config:
    topology = f"[topology]\nuse = {msgspec.json.encode(words.topology).decode()}\n" if words.topology else ""
    text = topology + "".join(f"[stages.{name}]\n" for name in words.running)
    config = configuration.loads(text, "swap")
    return replace(
        config,
        stages=words.running,
        device={**words.device, "placement": "thread"},
        model=replace(config.model, max_model_len=words.max_model_len),
    )


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
