"""Every stage swapped again and again under live streams of a real model.

    python -m tests.perf.swaps_under_load [--swaps 100] [--streams 64] [--stages A,B] [--model REF]

The device worker is a process, each stage is replaced by another of its class, stage after stage, at random
moments. Every answer must be the one that was given undisturbed, and no swap refused or rolled back. It says
how long a stream waited for its next piece, how long hand-overs took, and what the process holds. A quiet
machine with two cores takes about half a second a swap: six minutes.
"""

import argparse
import asyncio
import gc
import logging
import os
import random
import resource
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import aiohttp
import structlog
from msgspec.structs import replace

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import describe
from pipeline.checkpoint.reference import DEFAULT_REFERENCE
from pipeline.checkpoint.store import resolve
from pipeline.runtime.stage import Stage
from pipeline.runtime.swapped import USUAL
from pipeline.swapping import Order, Swapper
from tests.e2e.swapped import Streams, streaming
from tests.e2e.world import Server, serving

STAGES = ("tokenize", "schedule", "execute", "sample", "detokenize", "filter", "stream")
SHORT = replace(USUAL, trial_s=0.05, trial_batches=4, max_trial_s=0.5)
PATIENT = replace(SHORT, computing_s=3.0, boundary_s=30.0, pool_boundary_s=3.0)
"""For a busy machine."""
TOML = '[device]\nplacement = "process"\n[stages.filter]\n'
MAX_TOKENS = 24
UNDISTURBED_S = 8.0
THINGS = ("rain", "bread", "queues", "the sea", "maps", "tea", "snow", "bridges")
PROMPTS = [f"{number} things that are good about {thing}:" for number in range(2, 10) for thing in THINGS]
TOLD_EVERY = 10


class Left(NamedTuple):
    """What the process holds."""

    num_stages: int
    """Of those made since the start."""
    num_threads: int
    mib: int

    @classmethod
    def now(cls) -> "Left":
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        num_stages = sum(isinstance(each, Stage) for each in gc.get_objects())
        return cls(num_stages, threading.active_count(), pages * resource.getpagesize() >> 20)


class Seen(NamedTuple):
    """Of one stage's swaps."""

    stage: str
    num_swaps: int
    longest_gap_s: float
    """Between two pieces of a stream."""
    handovers_ms: list[float]
    left: Left

    def __str__(self) -> str:
        took = self.handovers_ms
        return (
            f"{self.stage}: {self.num_swaps} swaps, longest gap {self.longest_gap_s * 1e3:.0f} ms, hand-over "
            f"{median(took):.2f} ms median, {max(took):.2f} ms longest; {self.left}"
        )


def same(server: Server, name: str) -> Order:
    """The class that runs already."""
    return Order(server.pipeline.running.blueprint.config.stages[name].use)


async def swap_each(
    card: ModelCard,
    num_swaps: int,
    num_streams: int = 64,
    stages: Sequence[str] = STAGES,
    tell: Callable[[str], None] = print,
) -> list[Seen]:
    """Raises AssertionError where an answer differs, or a swap does not go well."""
    async with serving(card, toml=TOML) as server:
        texts = await _undisturbed(server)
        async with streaming(
            server.url, num_streams, MAX_TOKENS, lambda seed, _: texts[seed % len(PROMPTS)], PROMPTS
        ) as streams:
            await asyncio.sleep(UNDISTURBED_S)
            tell(f"undisturbed: longest gap {streams.longest_gap_s * 1e3:.0f} ms; {Left.now()}")
            swapper = Swapper(server.pipeline, rehearses=False, bounds=PATIENT)
            seen = [await _swap(server, swapper, streams, name, num_swaps, tell) for name in stages]
        tell(f"{streams.num_ended} answers, all as undisturbed")
        await server.rest()
    return seen


async def _swap(
    server: Server,
    swapper: Swapper,
    streams: Streams,
    name: str,
    num_swaps: int,
    tell: Callable[[str], None],
) -> Seen:
    streams.longest_gap_s, begun_s, took_ms = 0.0, time.perf_counter(), []
    for number in range(1, num_swaps + 1):
        await asyncio.sleep(random.uniform(0, 0.2))
        swapped = await swapper.swap(name, same(server, name))
        assert swapped.ending == "swapped", (name, number, swapped)
        took_ms.append(swapped.paused_ns / 1e6)
        if number % TOLD_EVERY == 0 and number < num_swaps:
            tell(f"  {name}: {number} of {num_swaps} swaps in {time.perf_counter() - begun_s:.0f} s")
    seen = Seen(name, num_swaps, streams.longest_gap_s, took_ms, Left.now())
    tell(str(seen))
    return seen


async def _undisturbed(server: Server) -> list[str]:
    """What is answered to each of PROMPTS."""
    async with aiohttp.ClientSession(server.url) as session:
        return list(await asyncio.gather(*(_answer(session, prompt) for prompt in PROMPTS)))


async def _answer(session: aiohttp.ClientSession, prompt: str) -> str:
    body = {"prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
    async with session.post("/v1/completions", json=body) as response:
        return str((await response.json())["choices"][0]["text"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--swaps", type=int, default=100, metavar="N", help="of each stage (100)")
    parser.add_argument("--streams", type=int, default=64, metavar="N", help="that are live meanwhile (64)")
    parser.add_argument("--stages", default=",".join(STAGES), metavar="A,B", help=f"({','.join(STAGES)})")
    parser.add_argument(
        "--model", default=os.environ.get("STAGELINE_MODEL") or DEFAULT_REFERENCE, metavar="REF"
    )
    args = parser.parse_args()
    stages = args.stages.split(",")
    if args.swaps < 1 or args.streams < 1 or not set(stages) <= set(STAGES):
        parser.error(f"--swaps and --streams must be 1 or more, and --stages of {', '.join(STAGES)}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    card = describe(resolve(args.model), args.model)
    begun_s = time.perf_counter()
    seen = asyncio.run(
        swap_each(card, args.swaps, args.streams, stages, lambda line: print(line, flush=True))
    )
    longest_s = max(each.longest_gap_s for each in seen)
    print(f"in {time.perf_counter() - begun_s:.0f} s; longest gap of all {longest_s * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
