"""Reader: a model that reads one sequence at a time, through a slot, blocks and steps, as a server's does."""

from dataclasses import replace

import torch
from torch import Tensor

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.backends import Opened
from pipeline.gpu.inputs import SlotTable
from pipeline.gpu.kv_cache import new_kv_cache
from pipeline.messages import Admitted, SamplingParams, StepPlan

CPU = torch.device("cpu")
SLOT = 0


class Reader:
    """Each step yields the logits of all its tokens.

    Args:
        max_len: of a sequence, tokens.
    """

    def __init__(self, opened: Opened, architecture: Architecture, max_len: int, block_size: int) -> None:
        self._model = opened.model
        self._block_size = block_size
        self._num_blocks = -(-max_len // block_size)
        self._cache = new_kv_cache(architecture, opened.layout, self._num_blocks, block_size, CPU)
        self._slots = SlotTable(1, self._num_blocks, block_size, CPU)
        self._free: list[int] = []
        self._num_columns = self._num_computed = 0

    def start(self) -> None:
        """The next step is the first of another sequence."""
        self._free = list(range(self._num_blocks))
        self._num_columns = self._num_computed = 0

    def step(self, token_ids: list[int]) -> Tensor:
        """The next tokens of the sequence -> [n, V] fp32: what may follow each."""
        step = self._slots.prepare(self._plan(token_ids))
        self._num_computed += len(token_ids)
        inputs = replace(step.inputs, logits_rows=torch.arange(len(token_ids)))
        return self._model.forward(inputs, self._cache).float()

    def _plan(self, token_ids: list[int]) -> StepPlan:
        first = self._num_columns
        self._num_columns = -(-(self._num_computed + len(token_ids)) // self._block_size)
        columns = list(range(first, self._num_columns))
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
            admitted=[] if self._num_computed else [Admitted(SLOT, SamplingParams(), 0)],
            block_slots=[SLOT] * len(columns),
            block_cols=columns,
            block_ids=[self._free.pop() for _ in columns],
        )
