"""The grid of `bench execute --fit`: steps of varied composition on the real runner, timed.

Prompts of one chunk and of later chunks, decode rows from one to all slots at several contexts, and both
mixed. The tokens and what the KV cache holds are arbitrary: no time depends on them.
"""

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from pipeline.bench.samples import Load
from pipeline.messages import Admitted, DeviceReady, SamplingParams, StepPlan
from pipeline.simulate.fitting import Timed
from pipeline.simulate.work import work_of

REPEATS = 3
CONTEXTS = (16, 256, 1024)
CHUNK_STARTS = (0, 512, 1536)


class Part(NamedTuple):
    """One row of a step."""

    num_tokens: int
    num_computed: int


Composition = Sequence[Part]


def grid(ready: DeviceReady, max_model_len: int) -> list[list[Part]]:
    """Every composition that the device can hold."""
    decodes = [[Part(1, context)] * count for count in _powers(ready.max_num_seqs) for context in CONTEXTS]
    chunks = [
        [Part(count, start)] for count in _powers(ready.max_num_batched_tokens)[3:] for start in CHUNK_STARTS
    ]
    mixed = [
        [Part(1, 256)] * num_rows + [Part(count, start)]
        for num_rows in _powers(ready.max_num_seqs)[2:-1:2]
        for count in _powers(ready.max_num_batched_tokens)[4::2]
        for start in CHUNK_STARTS[:2]
    ]
    return [parts for parts in decodes + chunks + mixed if _fits(parts, ready, max_model_len)]


def time_grid(
    runner: Any, load: Load, compositions: Sequence[Composition], progress: Callable[[int], None]
) -> list[Timed]:
    """Each composition `REPEATS` times, in turns; its median. `progress` is told how many steps are done."""
    ready: DeviceReady = runner.capacity
    plans = [list(_plans(parts, ready, load, number)) for number, parts in enumerate(compositions)]
    for plan in (plans[0][0], plans[-1][0]):
        runner.launch(plan).token_ids_sync()  # warm up
    times: list[list[int]] = [[] for _ in plans]
    done = 0
    for repeat in range(REPEATS):
        for place, variants in enumerate(plans):
            handle = runner.launch(variants[repeat])
            handle.token_ids_sync()
            times[place].append(handle.end_ns - handle.begin_ns)
            done += 1
            progress(done)
    return [
        Timed(work_of(variants[0]), int(median(taken))) for variants, taken in zip(plans, times, strict=True)
    ]


def _plans(parts: Composition, ready: DeviceReady, load: Load, number: int) -> Iterator[StepPlan]:
    for repeat in range(REPEATS):
        yield step_plan(parts, ready, load, number * REPEATS + repeat + 1)


def step_plan(parts: Composition, ready: DeviceReady, load: Load, step_id: int) -> StepPlan:
    """A plan that admits all its rows, each with blocks for its context and its tokens."""
    slots: list[int] = []
    columns: list[int] = []
    blocks: list[int] = []
    for slot, part in enumerate(parts):
        count = -(-(part.num_computed + part.num_tokens) // ready.block_size)
        slots += [slot] * count
        columns += range(count)
        blocks += [(len(blocks) + column) % ready.num_blocks for column in range(count)]
    num_tokens = sum(part.num_tokens for part in parts)
    return StepPlan(
        step_id=step_id,
        planned_ns=0,
        request_ids=list(range(len(parts))),
        epochs=[0] * len(parts),
        slots=list(range(len(parts))),
        num_tokens=[part.num_tokens for part in parts],
        num_computed=[part.num_computed for part in parts],
        samples=[True] * len(parts),
        token_ids=[load.token_ids[place % len(load.token_ids)] for place in range(num_tokens)],
        admitted=[
            Admitted(slot, SamplingParams(max_tokens=1, temperature=0), slot) for slot in range(len(parts))
        ],
        block_slots=slots,
        block_cols=columns,
        block_ids=blocks,
    )


def _powers(limit: int) -> list[int]:
    """1, 2, 4, ... and `limit`."""
    powers = [1 << power for power in range(limit.bit_length()) if 1 << power < limit]
    return [*powers, limit]


def _fits(parts: Composition, ready: DeviceReady, max_model_len: int) -> bool:
    num_tokens = sum(part.num_tokens for part in parts)
    num_blocks = sum(-(-(part.num_computed + part.num_tokens) // ready.block_size) for part in parts)
    return (
        num_tokens <= ready.max_num_batched_tokens
        and num_blocks <= ready.num_blocks
        and all(part.num_computed + part.num_tokens <= max_model_len for part in parts)
        and len(parts) <= ready.max_num_seqs
    )
