"""What the device side remembers of each slot, and how a StepPlan becomes the tensors of a step."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipeline.gpu.api import StepInputs
from pipeline.gpu.kv.contexts import Contexts, Ints
from pipeline.gpu.logprobs import AskedLogprobs
from pipeline.gpu.sampling import SamplingRows
from pipeline.gpu.sampling_slots import SamplingSlots
from pipeline.messages import NO_TOKEN, StepPlan


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A plan as tensors: for the model, for the sampling op, and the slots of the R sampled tokens."""

    inputs: StepInputs
    rows: SamplingRows
    sample_slots: Tensor
    """[R] int64."""
    asked: AskedLogprobs | None = None
    """Who of the R is to be told how probable his token was; None: nobody."""


class SlotTable:
    """Per-slot state, [max_num_seqs, ...]: block tables and sampling columns in host memory, the last sampled
    token on the device. A plan that admits a sequence to a slot replaces its state.
    """

    def __init__(
        self, max_num_seqs: int, max_blocks: int, block_size: int, vocab_size: int, device: torch.device
    ) -> None:
        self._block_size = block_size
        self._device = device
        self._block_tables = np.zeros((max_num_seqs, max_blocks), dtype=np.int32)
        self._sampling = SamplingSlots(max_num_seqs, vocab_size, device)
        self._last_token = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self._contexts = Contexts(max_num_seqs, max_blocks, block_size)

    def prepare(self, plan: StepPlan) -> PreparedStep:
        """Apply the plan's admissions and block changes, then lay its rows out: numpy over all tokens."""
        self._sampling.admit(plan.admitted)
        self._contexts.apply(plan, self._block_tables)
        self._block_tables[plan.block_slots, plan.block_cols] = plan.block_ids
        slots = np.array(plan.slots)
        num_tokens = np.array(plan.num_tokens)
        ends = np.cumsum(num_tokens)
        context_lens = np.array(plan.num_computed) + num_tokens
        positions = np.arange(ends[-1]) + np.repeat(context_lens - ends, num_tokens)
        num_dropped = self._contexts.num_dropped(slots)
        context_lens -= num_dropped
        num_columns = -(-int(context_lens.max()) // self._block_size)
        sampling = np.flatnonzero(plan.samples)
        logits_rows = ends[sampling] - 1
        token_slots = np.repeat(slots, num_tokens)
        sinks, windows = self._contexts.masks(slots, self._device)
        inputs = StepInputs(
            token_ids=self._token_ids(np.array(plan.token_ids), token_slots),
            positions=self._on_device(positions),
            slot_mapping=self._on_device(
                self._slot_mapping(positions - np.repeat(num_dropped, num_tokens), token_slots)
            ),
            query_start=self._on_device(np.concatenate(([0], ends)).astype(np.int32)),
            context_lens=self._on_device(context_lens.astype(np.int32)),
            block_tables=self._on_device(self._block_tables[slots, :num_columns]),
            logits_rows=self._on_device(logits_rows),
            sinks=sinks,
            windows=windows,
            max_queries=int(num_tokens.max()),
            mass=self._contexts.new_mass(slots, num_columns, self._device),
        )
        columns = self._sampling.columns(slots[sampling], positions[logits_rows])
        rows = self._sampling.rows({name: self._on_device(column) for name, column in columns.items()})
        return PreparedStep(inputs, rows, self._on_device(slots[sampling]), self._asked(slots[sampling]))

    def remember(self, step: PreparedStep, token_ids: Tensor) -> None:
        """Keep the step's sampled tokens [R] as their slots' next input; count them where that is asked."""
        self._last_token[step.sample_slots] = token_ids
        self._sampling.remember(step.rows, token_ids)

    def drops(self, plan: StepPlan, inputs: StepInputs) -> list[list[int]]:
        """The plan's step is done: the answers to its questions."""
        return self._contexts.weigh(plan, inputs.mass)

    def _asked(self, slots: Ints) -> AskedLogprobs | None:
        rows = self._sampling.asked_logprobs(slots)
        return self._sampling.asked(slots, rows, self._on_device(rows)) if rows.size else None

    def _token_ids(self, token_ids: Ints, token_slots: Ints) -> Tensor:
        # [T]; NO_TOKEN stands for the last token sampled in the slot, which only the device may know yet
        on_device = self._on_device(token_ids)
        unknown = np.flatnonzero(token_ids == NO_TOKEN)
        if unknown.size:
            on_device[self._on_device(unknown)] = self._last_token[self._on_device(token_slots[unknown])]
        return on_device

    def _slot_mapping(self, entries: Ints, token_slots: Ints) -> Ints:
        blocks = self._block_tables[token_slots, entries // self._block_size].astype(np.int64)
        return blocks * self._block_size + entries % self._block_size

    def _on_device(self, array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self._device)
