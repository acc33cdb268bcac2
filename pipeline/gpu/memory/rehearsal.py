"""Rehearsal: the largest steps, really run once, over a cache of a few blocks, before the real one is sized.

What they take beside the cache is measured, so that no later step can run out of memory. They are the
warm-up as well: whatever is loaded, built or started by a first step is there before the first request.

Four steps are the largest, each in its way: `widest` has as many tokens as a step may have, over as many
rows as there are slots, all of which sample; `deepest` is one row's queries at the end of the longest one;
`fullest` decodes in all slots, with as much context as the cache will hold; `uneven` decodes in all slots,
one of them at its full length, for what goes by the number of rows times the widest table (scratch of decode
attention: kernels.attention_decode). Contexts are longer than the few blocks: their tables name the same
blocks again and again, and only what is written lies apart.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import structlog
import torch
from msgspec.structs import replace

from pipeline.gpu.memory.device import free_bytes, in_use_bytes, most_bytes
from pipeline.gpu.memory.sizing import Free, check_fits, count_blocks
from pipeline.gpu.options import RunnerOptions
from pipeline.messages import (
    MAX_LOGPROBS,
    MAX_SCORES,
    Admitted,
    PromptImage,
    SamplingParams,
    Scored,
    StepHandle,
    StepPlan,
)

QUERIES = 128
"""Of one row, that attention works on at the same time at most (reference.tiles.TILE)."""
MAX_PRODUCTS = 2**18
"""Queries times context of `deepest`: past it, it is run with fewer queries and taken so many times over."""
WORST = SamplingParams(
    temperature=1.0, top_k=50, top_p=0.9, seed=1, min_p=0.01, presence_penalty=1.0, logprobs=MAX_LOGPROBS
)
"""All on that grows with the number of rows: the most memory that sampling takes, its counts included."""


class Rows(NamedTuple):
    """Of a step, one value a row."""

    num_tokens: list[int]
    num_computed: list[int]


@dataclass(frozen=True, slots=True)
class Shape:
    """How large steps may be."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    image: PromptImage | None = None
    """Any, with its tokens from 0 on, for a model that reads images."""

    def widest(self) -> Rows:
        num_rows = min(self.max_num_seqs, self.max_num_batched_tokens)
        even, more = divmod(self.max_num_batched_tokens, num_rows)
        sizes = [min(even + (row < more), self.max_model_len) for row in range(num_rows)]
        return Rows(sizes, [0] * num_rows)

    def deepest(self) -> tuple[Rows, int]:
        """And how many times over its memory is to be taken."""
        wanted = min(self.max_num_batched_tokens, self.max_model_len, QUERIES)
        num_queries = min(wanted, max(1, MAX_PRODUCTS // self.max_model_len))
        return Rows([num_queries], [self.max_model_len - num_queries]), -(-wanted // num_queries)

    def fullest(self, num_kv_tokens: int) -> Rows:
        num_rows = min(self.max_num_seqs, self.max_num_batched_tokens)
        context = max(1, min(self.max_model_len, num_kv_tokens // num_rows))
        return Rows([1] * num_rows, [context - 1] * num_rows)

    def uneven(self) -> Rows:
        num_rows = min(self.max_num_seqs, self.max_num_batched_tokens)
        return Rows([1] * num_rows, [self.max_model_len - 1] + [0] * (num_rows - 1))

    def num_written(self, rows: Rows) -> int:
        """Blocks that a step of these rows writes to."""
        return sum(self._columns(*row)[1] for row in zip(*rows, strict=True))

    def plan(self, rows: Rows, num_blocks: int) -> StepPlan:
        """Over so many blocks, at least `num_written`."""
        block_slots: list[int] = []
        block_cols: list[int] = []
        block_ids: list[int] = []
        next_id = 0
        for slot, row in enumerate(zip(*rows, strict=True)):
            num_read, num_written = self._columns(*row)
            num_columns = num_read + num_written
            block_slots += [slot] * num_columns
            block_cols += range(num_columns)
            block_ids += [column % num_blocks for column in range(num_read)]
            block_ids += range(next_id, next_id + num_written)
            next_id += num_written
        num_rows = len(rows.num_tokens)
        return StepPlan(
            step_id=0,
            planned_ns=0,
            request_ids=list(range(num_rows)),
            epochs=[0] * num_rows,
            slots=list(range(num_rows)),
            num_tokens=rows.num_tokens,
            num_computed=rows.num_computed,
            samples=[True] * num_rows,
            token_ids=[0] * sum(rows.num_tokens),
            admitted=self._admitted(rows),
            block_slots=block_slots,
            block_cols=block_cols,
            block_ids=block_ids,
            scored=_scored(rows),
        )

    def _admitted(self, rows: Rows) -> list[Admitted]:
        """With as many images as a step may have tokens of: all that end in it, and one more."""
        admitted = [Admitted(slot, WORST, slot) for slot in range(len(rows.num_tokens))]
        if self.image is not None:
            num_images = self.max_num_batched_tokens // self.image.num_tokens + 1
            images = (self.image,)
            admitted[:num_images] = [replace(each, images=images) for each in admitted[:num_images]]
        return admitted

    def _columns(self, num_tokens: int, num_computed: int) -> tuple[int, int]:
        """Of a row's block table: those it only reads, and those it writes to."""
        num_read = num_computed // self.block_size
        return num_read, -(-(num_computed + num_tokens) // self.block_size) - num_read


def _scored(rows: Rows) -> list[Scored]:
    """As much as a step may be asked."""
    scored: list[Scored] = []
    left = MAX_SCORES
    for row, num_tokens in enumerate(rows.num_tokens):
        if left and num_tokens > 1:
            scored.append(Scored(row, [0] * min(left, num_tokens), MAX_LOGPROBS))
            left -= len(scored[-1].token_ids)
    return scored


Launch: TypeAlias = Callable[[StepPlan], StepHandle]


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Which steps are run, over how many blocks.

    Args:
        num_kv_tokens: what the cache will hold at most.
        by_context: whether the memory of a step grows with its contexts; else only the other two are run.
    """

    shape: Shape
    num_kv_tokens: int
    by_context: bool

    @property
    def num_blocks(self) -> int:
        """That the cache of the rehearsal must have."""
        return max(self.shape.num_written(rows) for rows, _ in self._steps())

    def step_bytes(self, launch: Launch, device: torch.device) -> int:
        """Run them: the most memory that one takes beside what is in use between steps."""
        launch(self.shape.plan(Rows([1], [0]), 1)).token_ids_sync()  # what a first step leaves stays anyway
        most = 0
        for rows, times in self._steps():
            before = in_use_bytes(device)
            work = partial(launch, self.shape.plan(rows, self.num_blocks))
            taken = most_bytes(device, work) - before
            most = max(most, before + times * max(0, taken))
        return max(0, most - in_use_bytes(device))  # what the allocator still holds is not free either

    def _steps(self) -> list[tuple[Rows, int]]:
        """And how many times over the memory of each is to be taken."""
        steps = [(self.shape.widest(), 1), (self.shape.fullest(self.num_kv_tokens), 1)]
        return [*steps, self.shape.deepest(), (self.shape.uneven(), 1)] if self.by_context else steps


def measure_blocks(
    options: RunnerOptions,
    device: torch.device,
    block_bytes: int,
    useful_blocks: int,
    step_bytes: Callable[[int], int],
) -> int:
    """How many KV blocks the options come to, beside the largest step. Raises ConfigError or ModelError.

    Args:
        useful_blocks: all slots at full length.
        step_bytes: rehearses for a cache of so many blocks at most.
    """
    free = Free(free_bytes(device))
    if options.num_blocks is not None:
        check_fits(f"num_blocks = {options.num_blocks}", options.num_blocks * block_bytes, free)
        return options.num_blocks
    sizes = (device.type, block_bytes, useful_blocks)
    begin_ns = time.perf_counter_ns()
    needed = step_bytes(count_blocks(options.kv_memory, free, *sizes))
    took_ms = (time.perf_counter_ns() - begin_ns) // 1_000_000
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    log.info("the largest step was run once", mib=round(needed / 2**20), took_ms=took_ms)
    return count_blocks(options.kv_memory, Free(free_bytes(device), needed), *sizes)
