"""Drives a Runner by hand: sequences in slots, blocks scattered over the cache, any mixture of chunks."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.models import find_model
from pipeline.gpu.runner import Runner
from pipeline.gpu.sampling import SamplingOp, SamplingRows
from pipeline.messages import NO_TOKEN, Admitted, Pooling, PromptImage, SamplingParams, StepPlan

GREEDY = SamplingParams(temperature=0.0)
TINY = Architecture(
    family="llama",
    num_layers=2,
    hidden_size=48,
    intermediate_size=80,
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=101,
    max_position=1024,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
)


def random_tensors(architecture: Architecture, seed: int = 0) -> list[tuple[str, Tensor]]:
    """Weights large enough that greedy texts do not repeat one token."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for name, shape in find_model(architecture.family).shapes(architecture).items():
        noise = torch.randn(shape, generator=generator)
        scale = 1.0 if "embed" in name else shape[-1] ** -0.5
        tensors.append((name, 1 + 0.1 * noise if name.endswith("norm.weight") else noise * scale))
    return tensors


@dataclass(eq=False)
class Sequence:
    slot: int
    token_ids: list[int]
    """What the scheduler knows: the prompt, then NO_TOKEN for each output, which the device remembers."""
    sampling: SamplingParams
    pooling: Pooling = ""
    embedding: Tensor | None = None
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    is_new: bool = True
    places: list[int] = field(default_factory=list)
    """Where its blocks are in host memory while it is swapped out."""
    images: tuple[PromptImage, ...] = ()

    def admitted(self) -> Admitted:
        images = tuple(image for image in self.images if image.end > self.num_computed)
        return Admitted(self.slot, self.sampling, self.slot, pooling=self.pooling, images=images)


class KeepLogits(SamplingOp):
    """Remembers the logits of the last step that sampled."""

    last: Tensor

    def __call__(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        self.last = logits
        return super().__call__(logits, rows)


class Driver:
    """Plans steps for a runner as a scheduler would; every block id is drawn at random from the free ones."""

    def __init__(self, runner: Runner, seed: int = 0) -> None:
        self.runner = runner
        self._block_size = runner.capacity.block_size
        self._free_blocks = list(range(runner.capacity.num_blocks))
        random.Random(seed).shuffle(self._free_blocks)
        self._free_slots = list(range(runner.capacity.max_num_seqs))
        self._step_id = 0
        self._saved: list[tuple[int, int]] = []
        self._next_place = 0

    def add(
        self,
        prompt: Iterable[int],
        sampling: SamplingParams = GREEDY,
        pooling: Pooling = "",
        images: tuple[PromptImage, ...] = (),
    ) -> Sequence:
        return Sequence(self._free_slots.pop(), list(prompt), sampling, pooling, images=images)

    def remove(self, sequence: Sequence) -> None:
        self._free_blocks += sequence.blocks
        self._free_slots.append(sequence.slot)

    def preempt(self, sequence: Sequence) -> None:
        """Give its blocks up; its next steps recompute prompt and output so far."""
        self._free_blocks[:0] = sequence.blocks
        known = len(sequence.token_ids) - len(sequence.output)
        sequence.token_ids[known:] = sequence.output
        sequence.blocks, sequence.num_computed, sequence.is_new = [], 0, True

    def swap_out(self, sequence: Sequence) -> None:
        """Give its blocks up, but keep what they hold; its next steps go on from there, all tokens known."""
        blocks = sequence.blocks
        sequence.places = list(range(self._next_place, self._next_place + len(blocks)))
        self._next_place += len(blocks)
        self._saved += zip(blocks, sequence.places, strict=True)
        num_computed = sequence.num_computed
        self.preempt(sequence)
        self._free_blocks = self._free_blocks[len(blocks) :] + blocks  # the next that grows overwrites them
        sequence.num_computed = min(num_computed, len(sequence.token_ids) - 1)

    def step(self, rows: list[tuple[Sequence, int]]) -> list[Sequence]:
        """One step that computes the next `count` tokens of each sequence; -> those that got a token."""
        plan = self._plan(rows)
        sampled = [sequence for (sequence, _), samples in zip(rows, plan.samples, strict=True) if samples]
        launched = self.runner.launch(plan)
        token_ids = launched.token_ids_sync()
        for row, embedding in zip(plan.pooled, launched.embeddings_sync(), strict=True):
            rows[row][0].embedding = torch.frombuffer(bytearray(embedding), dtype=torch.float32)
        for sequence, count in rows:
            sequence.num_computed += count
            sequence.is_new = False
        for sequence, token_id in zip(sampled, token_ids, strict=True):
            sequence.output.append(token_id)
            sequence.token_ids.append(NO_TOKEN)
        return sampled

    def next_rows(self, sequences: list[Sequence], chunk: int) -> list[tuple[Sequence, int]]:
        """What a first-come-first-served scheduler would give each of them in the next step."""
        rows, budget = [], self.runner.capacity.max_num_batched_tokens
        for sequence in sequences:
            count = min(len(sequence.token_ids) - sequence.num_computed, chunk, budget)
            if count:
                rows.append((sequence, count))
                budget -= count
        return rows

    def _plan(self, rows: list[tuple[Sequence, int]]) -> StepPlan:
        self._step_id += 1
        changes = [change for sequence, count in rows for change in self._grow(sequence, count)]
        sequences = [sequence for sequence, _ in rows]
        loaded = [pair for s in sequences for pair in zip(s.places, s.blocks, strict=False)]
        for sequence in sequences:
            sequence.places = []
        saved, self._saved = self._saved, []
        spans = [(s, s.num_computed, s.num_computed + count) for s, count in rows]
        return StepPlan(
            step_id=self._step_id,
            planned_ns=0,
            request_ids=[s.slot for s in sequences],
            epochs=[0] * len(rows),
            slots=[s.slot for s in sequences],
            num_tokens=[count for _, count in rows],
            num_computed=[s.num_computed for s in sequences],
            samples=[end == len(s.token_ids) and not s.pooling for s, _, end in spans],
            token_ids=[token for s, start, end in spans for token in s.token_ids[start:end]],
            admitted=[s.admitted() for s in sequences if s.is_new],
            block_slots=[slot for slot, _, _ in changes],
            block_cols=[column for _, column, _ in changes],
            block_ids=[block for _, _, block in changes],
            saved_ids=[block for block, _ in saved],
            saved_places=[place for _, place in saved],
            loaded_places=[place for place, _ in loaded],
            loaded_ids=[block for _, block in loaded],
            pooled=[row for row, (s, _, end) in enumerate(spans) if s.pooling and end == len(s.token_ids)],
        )

    def _grow(self, sequence: Sequence, count: int) -> list[tuple[int, int, int]]:
        needed = -(-(sequence.num_computed + count) // self._block_size)
        changes = []
        while len(sequence.blocks) < needed:
            sequence.blocks.append(self._free_blocks.pop())
            changes.append((sequence.slot, len(sequence.blocks) - 1, sequence.blocks[-1]))
        return changes
