"""What the device side remembers of each slot, and how a StepPlan becomes the tensors of a step."""

from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from pipeline.gpu.api import StepInputs
from pipeline.gpu.device import Completion, Device
from pipeline.gpu.grammar_slots import Constrained, GrammarSlots
from pipeline.gpu.graphs import NO_GRAPHS, DecodeGraphs, GraphShape
from pipeline.gpu.image_slots import ImageSlots, ImageTokens, See
from pipeline.gpu.kv.block_weights import BlockWeights
from pipeline.gpu.kv.contexts import Contexts
from pipeline.gpu.logprobs import AskedLogprobs, AskedScores, asked_scores
from pipeline.gpu.pooling import PooledStep, PooledTokens, Pools
from pipeline.gpu.sampling import SamplingRows
from pipeline.gpu.sampling_columns import RULES, Columns
from pipeline.gpu.sampling_slots import SamplingSlots
from pipeline.gpu.slot_rules import Words
from pipeline.gpu.step_buffer import new_buffer
from pipeline.gpu.step_rows import NO_INTS, Ints, StepRows, no_rows, rows_of, scored_tokens
from pipeline.grammar import CompiledGrammars
from pipeline.messages import NO_TOKEN, StepPlan

TOKEN_BYTES = 32
"""Of a step's buffer, for each token; and"""
ROW_BYTES = 256
"""for each row beside its table: sampling columns, unless the row has rules."""
MORE_BYTES = 4096
"""What alignment adds."""


class Weighing(NamedTuple):
    """What is done with the weights of blocks; None: nothing."""

    moves: tuple[Tensor, Tensor] | None
    """Of BlockWeights.move."""
    added: tuple[Tensor, Tensor] | None
    """Rows and slots, of BlockWeights.add."""
    asked: Tensor | None
    """[Q] int64: slots of the plan's questions."""


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A plan as tensors: for the model, for the sampling op, and for what is remembered. Their contents are
    there once the slot table has sent them.
    """

    inputs: StepInputs
    token_slots: Tensor
    """[T] int64."""
    has_unknown: bool
    """Some tokens are the last that were sampled in their slots."""
    rows: SamplingRows
    sample_slots: Tensor
    """[R] int64: slots of the sampled tokens."""
    asked: AskedLogprobs | None
    """Who of the R is to be told how probable his token was; None: nobody."""
    scored: AskedScores | None
    """The S tokens of prompts whose probabilities are asked for, of the [R + S, V] logits; None: none."""
    constrained: Constrained | None
    """Which of the R grammars constrain: their masks are not in `rows` yet."""
    weighing: Weighing
    pooled: PooledStep | None
    """None: no row is of an embedding."""
    shape: GraphShape | None
    """Of the graph that it is laid out for; None: it runs kernel by kernel."""
    images: ImageTokens | None = None
    """None: no row has tokens of an image."""


class SlotTable:
    """Per-slot state, [max_num_seqs, ...]: block tables and sampling columns in host memory, the last sampled
    token on the device. A plan that admits a sequence to a slot replaces its state.

    For a step: `prepare`, `send`, `see`, the forward pass, `constrain`, sampling, `remember`, `pool`,
    `weigh`, `launched`.

    Args:
        max_num_tokens: of a step.
        hidden_size: of the model's states, for embeddings.
        grammars: None: no request has one.
        see: the model's image encoder, and
        image_size: S of its images, [3, S, S]; None: it has none.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_blocks: int,
        block_size: int,
        vocab_size: int,
        device: Device,
        max_num_tokens: int,
        hidden_size: int,
        grammars: CompiledGrammars | None = None,
        see: See | None = None,
        image_size: int = 0,
    ) -> None:
        self._block_size = block_size
        self._torch_device = device.torch_device
        self._block_tables = np.zeros((max_num_seqs, max_blocks), dtype=np.int32)
        self._contexts = Contexts(max_num_seqs, block_size)
        self._weights = BlockWeights(max_num_seqs, max_blocks, self._torch_device)
        self._sampling = SamplingSlots(max_num_seqs, vocab_size, self._torch_device)
        self._hidden_size = hidden_size
        self._pools = Pools(max_num_seqs, hidden_size, self._torch_device)
        self._grammars = GrammarSlots(vocab_size, grammars)
        self._images = ImageSlots(see, image_size, self._torch_device)
        self._last_token = torch.zeros(max_num_seqs, dtype=torch.int64, device=self._torch_device)
        row_bytes = ROW_BYTES + max_blocks * self._block_tables.itemsize
        self._buffer = new_buffer(
            device, max_num_tokens * TOKEN_BYTES + max_num_seqs * row_bytes + MORE_BYTES
        )

    def prepare(self, plan: StepPlan, graphs: DecodeGraphs = NO_GRAPHS) -> PreparedStep:
        """Apply the plan's admissions and block changes, then lay its rows out; for a graph if one fits."""
        self._sampling.admit(plan.admitted)
        self._grammars.admit(plan.admitted)
        self._images.admit(plan.admitted)
        cleared = self._pools.admit(plan.admitted)
        self._contexts.apply(plan, self._block_tables)
        self._block_tables[plan.block_slots, plan.block_cols] = plan.block_ids
        rows = rows_of(plan, self._contexts.num_dropped, self._block_tables, self._block_size)
        weighed = self._contexts.weighed_rows(rows.slots)
        images = self._images.tokens(plan)
        fits = rows.is_decode and not weighed.size and images is None
        shape = graphs.fit(*rows.block_tables.shape) if fits else None
        step = self._lay_out(rows, plan, weighed, cleared, shape)
        return step if images is None else self._with_images(step, images)

    def empty(self, shape: GraphShape) -> tuple[StepInputs, Tensor]:
        """Inputs and token slots of a decode step of this shape without a row: where those of every such step
        will be.
        """
        self._buffer.begin()
        laid_out = self._put(no_rows(), shape, NO_INTS)
        self._buffer.upload()
        return laid_out

    def wait_sync(self) -> None:
        """For all that was sent, or laid out empty."""
        self._buffer.wait_sync()

    def send(self, step: PreparedStep) -> None:
        """Queue the copy of all that was prepared, and what else comes before the model."""
        self._buffer.upload()
        if step.weighing.moves is not None:
            self._weights.move(*step.weighing.moves)
        if step.has_unknown and step.shape is None:
            self.fill_in(step.inputs.token_ids, step.token_slots)

    def see(self, step: PreparedStep) -> StepInputs:
        """What the model gets: the step's inputs, with the states of images, whose encoder is queued."""
        if step.images is None:
            return step.inputs
        return replace(step.inputs, image_states=self._images.states(step.images))

    def fill_in(self, token_ids: Tensor, token_slots: Tensor) -> None:
        """[T], [T]: NO_TOKEN becomes the last token sampled in the slot, which only the device may know."""
        last = self._last_token.index_select(0, token_slots)
        torch.where(token_ids == NO_TOKEN, last, token_ids, out=token_ids)

    def constrain(self, step: PreparedStep) -> tuple[SamplingRows, list[int]]:
        """The step's rows with the masks of their grammars; which of the R have failed, and sample anything.
        Waits for earlier steps where a grammar must know what they sampled.
        """
        if step.constrained is None:
            return step.rows, []
        assert step.rows.rules is not None, "who has a grammar has rules"
        words, failed = self._grammars.masks(step.constrained)
        mask = torch.from_numpy(words)
        if self._torch_device.type == "cuda":  # a copy from memory that is not pinned waits for the step
            mask = mask.pin_memory().to(self._torch_device, non_blocking=True)
        return replace(step.rows, rules=replace(step.rows.rules, mask=mask)), failed

    def remember(self, step: PreparedStep, token_ids: Tensor) -> None:
        """Keep the step's sampled tokens [R] as their slots' next input; count them where that is asked."""
        self._last_token.index_copy_(0, step.sample_slots, token_ids)
        self._sampling.remember(step.rows, token_ids)

    def pool(self, step: PreparedStep) -> Tensor | None:
        """Add the hidden states that count; [P, C] fp32 of the plan's pooled rows, None where it has none."""
        if step.pooled is None or step.inputs.hidden is None:
            return None
        done = self._pools.add(step.pooled, step.inputs.hidden)
        return done if done.shape[0] else None

    def weigh(self, step: PreparedStep) -> Tensor | None:
        """Add what the step's rows attended to; what block_weights.least answers the plan's questions from,
        [Q, N].
        """
        added, asked, mass = step.weighing.added, step.weighing.asked, step.inputs.mass
        if added is not None and mass is not None:
            self._weights.add(mass, *added)
        return None if asked is None else self._weights.of(asked, step.inputs.block_tables.shape[1])

    def launched(self, step: PreparedStep, completion: Completion) -> None:
        """It was the one that was sent last."""
        self._buffer.guard(completion)
        if step.constrained is not None:
            self._grammars.sampled(step.constrained, completion)

    def forget(self) -> None:
        """No step in flight will be done."""
        self._grammars.forget()
        self._images.forget()

    def _lay_out(
        self, rows: StepRows, plan: StepPlan, weighed: Ints, cleared: Ints, shape: GraphShape | None
    ) -> PreparedStep:
        put = self._buffer.put
        self._buffer.begin()
        scored = scored_tokens(plan, rows.ends)
        inputs, token_slots = self._put(rows, shape, scored, has_mass=bool(weighed.size))
        pooled = self._pools.tokens(rows, plan.pooled)
        sample_slots, last = rows.slots[rows.sampling], rows.ends[rows.sampling] - 1
        columns = self._sampling.columns(sample_slots, rows.positions[last])
        constrained = self._constrained(sample_slots, columns)
        asking = self._sampling.asked_logprobs(sample_slots)
        return PreparedStep(
            inputs=inputs if pooled is None else self._with_hidden(inputs, pooled),
            token_slots=token_slots,
            has_unknown=bool((rows.token_ids == NO_TOKEN).any()),
            rows=self._sampling.rows({name: put(column) for name, column in columns.items()}),
            sample_slots=put(sample_slots),
            asked=self._sampling.asked(sample_slots, asking, put(asking)) if asking.size else None,
            scored=asked_scores(plan, put),
            constrained=constrained,
            weighing=self._weighing(plan, rows.slots, weighed),
            pooled=None if pooled is None else self._pooled(pooled, cleared),
            shape=shape,
        )

    def _with_images(self, step: PreparedStep, images: ImageTokens) -> PreparedStep:
        inputs = replace(step.inputs, image_rows=self._buffer.put(images.rows))
        return replace(step, inputs=inputs, images=images)

    def _constrained(self, slots: Ints, columns: Columns) -> Constrained | None:
        """Their mask is made later, and is not sent with the columns."""
        if RULES + "rows" not in columns:
            return None
        mask = cast(Words | None, columns.get(RULES + "mask"))
        constrained = self._grammars.constrained(slots, cast(Ints, columns[RULES + "rows"]), mask)
        if constrained is not None:
            columns.pop(RULES + "mask", None)
        return constrained

    def _put(
        self, rows: StepRows, shape: GraphShape | None, scored: Ints, has_mass: bool = False
    ) -> tuple[StepInputs, Tensor]:
        # in one order, and first of all: a graph's inputs are at the same addresses in every step
        put = self._buffer.put
        num_tokens, (num_rows, num_columns) = len(rows.token_ids), shape or rows.block_tables.shape
        tokens = (num_rows,) if shape else (num_tokens,)
        ends = np.arange(1, num_rows + 1) if shape else rows.ends
        has_masks = shape is not None or self._contexts.has_masks(rows.slots)
        sinks, windows = self._contexts.masks(rows.slots) if has_masks else (None, None)
        token_slots = put(rows.token_slots, tokens)
        inputs = StepInputs(
            token_ids=put(rows.token_ids, tokens),
            positions=put(rows.positions, tokens),
            slot_mapping=put(rows.slot_mapping, tokens, fill=-1),
            query_start=put(np.concatenate(([0], ends)).astype(np.int32)),
            context_lens=put(rows.context_lens, (num_rows,)),
            block_tables=put(rows.block_tables, (num_rows, num_columns)),
            logits_rows=put(ends - 1 if shape else np.concatenate((ends[rows.sampling] - 1, scored))),
            sinks=None if sinks is None else put(sinks, (num_rows,)),
            windows=None if windows is None else put(windows, (num_rows,)),
            max_queries=rows.max_queries,
            mass=self._new_mass(num_rows, num_columns) if has_mass else None,
        )
        return inputs, token_slots

    def _with_hidden(self, inputs: StepInputs, pooled: PooledTokens) -> StepInputs:
        shape = (len(pooled.tokens), self._hidden_size)
        hidden = torch.empty(shape, dtype=torch.float32, device=self._torch_device)
        return replace(inputs, hidden_rows=self._buffer.put(pooled.tokens), hidden=hidden)

    def _pooled(self, pooled: PooledTokens, cleared: Ints) -> PooledStep:
        put = self._buffer.put
        return PooledStep(put(pooled.slots), put(pooled.done), put(cleared) if cleared.size else None)

    def _new_mass(self, num_rows: int, num_columns: int) -> Tensor:
        return torch.zeros(num_rows, num_columns, dtype=torch.int64, device=self._torch_device)

    def _weighing(self, plan: StepPlan, slots: Ints, weighed: Ints) -> Weighing:
        put = self._buffer.put
        moves = self._weights.moves(plan, self._contexts.is_weighed)
        asked = slots[[question.row for question in plan.questions]] if plan.questions else None
        return Weighing(
            moves=None if moves is None else (put(moves[0]), put(moves[1])),
            added=(put(weighed), put(slots[weighed])) if weighed.size else None,
            asked=None if asked is None else put(asked),
        )
