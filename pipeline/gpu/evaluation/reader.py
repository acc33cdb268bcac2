"""Reader: a model that reads one sequence at a time, through a slot, blocks and steps, as a server's does."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from pipeline.checkpoint.card import Architecture
from pipeline.core.block_pool import blocks_for
from pipeline.core.retention import KEEP_ALL, Retention
from pipeline.gpu.backends import Opened
from pipeline.gpu.device import HostDevice
from pipeline.gpu.inputs import SlotTable
from pipeline.gpu.kv.block_weights import least
from pipeline.gpu.kv.cache import new_kv_cache
from pipeline.messages import Admitted, DropQuestion, SamplingParams, StepPlan

CPU = torch.device("cpu")
SLOT = 0
CHUNK = 128
"""Tokens a step: positions whose logits are held at a time."""


class Reader:
    """Every step yields the logits of all its tokens.

    Blocks are dropped where a server drops them: what no later query sees before a step, and of what is
    weighed as many of the least as are over the budget after it. It holds no block more than a server does.

    Args:
        max_len: of a sequence, tokens.
        retention: what a sequence keeps of its context.
    """

    def __init__(
        self,
        opened: Opened,
        architecture: Architecture,
        max_len: int,
        block_size: int,
        retention: Retention = KEEP_ALL,
    ) -> None:
        self._model, self._retention = opened.model, retention
        self._block_size = block_size
        self._num_blocks = min(blocks_for(max_len, block_size), retention.max_blocks)
        self._cache = new_kv_cache(architecture, opened.layout, self._num_blocks, block_size, CPU)
        sizes = (1, self._num_blocks, block_size, architecture.vocab_size)
        self._slots = SlotTable(*sizes, HostDevice(), CHUNK, architecture.hidden_size)
        self.start()

    def start(self) -> None:
        """The next step is the first of another sequence."""
        self._free = list(range(self._num_blocks))
        self._blocks: list[int] = []
        self._num_computed = self._num_dropped = 0
        self._dropped_cols: list[int] = []
        """Of the table that the slot has, to be taken out one after the other."""

    def read(self, token_ids: list[int]) -> Iterator[Tensor]:
        """The next tokens, step by step: in chunks, or where blocks are dropped a block at a time, so that
        they are dropped as in decoding.
        """
        size = self._block_size if self._retention.drops else CHUNK
        for start in range(0, len(token_ids), size):
            yield self.step(token_ids[start : start + size])

    def step(self, token_ids: list[int]) -> Tensor:
        """The next tokens of the sequence -> [n, V] fp32: what may follow each. Where blocks are dropped they
        must not go past the end of a block.
        """
        self._drop(self._retention.unseen(self._num_computed - self._num_dropped))
        plan = self._plan(token_ids)
        step = self._slots.prepare(plan)
        self._slots.send(step)
        inputs = replace(step.inputs, logits_rows=torch.arange(len(token_ids)))
        logits = self._model.forward(inputs, self._cache)
        self._num_computed += len(token_ids)
        weights = self._slots.weigh(step)
        for columns in [] if weights is None else least(weights.numpy(), plan.questions):
            self._drop(columns)
        return logits.float()

    def _drop(self, columns: Iterable[int]) -> None:
        for column in sorted(columns, reverse=True):
            self._free.append(self._blocks.pop(column))
            self._dropped_cols.append(column)
            self._num_dropped += self._block_size

    def _plan(self, token_ids: list[int]) -> StepPlan:
        dropped, self._dropped_cols = self._dropped_cols, []
        columns = self._grow(len(token_ids))
        is_first = self._num_computed == 0
        return StepPlan(
            step_id=0,
            planned_ns=0,
            request_ids=[0],
            epochs=[0],
            slots=[SLOT],
            num_tokens=[len(token_ids)],
            num_computed=[self._num_computed],
            samples=[False],
            token_ids=token_ids,
            admitted=[self._admitted()] if is_first else [],
            block_slots=[SLOT] * len(columns),
            block_cols=list(columns),
            block_ids=[self._blocks[column] for column in columns],
            dropped_slots=[SLOT] * len(dropped),
            dropped_cols=dropped,
            questions=self._questions(len(token_ids)),
        )

    def _grow(self, num_tokens: int) -> range:
        """Columns that are new with so many tokens more."""
        first, num_entries = len(self._blocks), self._num_computed - self._num_dropped + num_tokens
        while len(self._blocks) < blocks_for(num_entries, self._block_size):
            self._blocks.append(self._free.pop())
        return range(first, len(self._blocks))

    def _admitted(self) -> Admitted:
        retention = self._retention
        return Admitted(
            SLOT,
            SamplingParams(),
            request_id=0,
            sinks=retention.num_sinks if retention.window else 0,
            window=retention.window,
            is_weighed=retention.is_weighed,
        )

    def _questions(self, num_tokens: int) -> list[DropQuestion]:
        num_entries = self._num_computed - self._num_dropped + num_tokens
        num_drops = self._retention.num_drops(num_entries)
        columns = self._retention.candidates(num_entries)
        return [DropQuestion(0, num_drops, columns.start, columns.stop)] if num_drops else []
