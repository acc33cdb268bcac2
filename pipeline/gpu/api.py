"""The boundary between model code and kernels: Ops, what a step needs, and what a model is.

Letters in shapes: B rows (sequences in the step), T tokens (packed over rows), C hidden size, H query heads,
Hkv key/value heads, D head dim, F feed-forward size, V vocabulary, R rows that yield a token.
A kernel library implements Ops; a library that runs all layers in one call (gpu.host) implements Model and
KvLayout instead.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.weights.blocks import Weight
from pipeline.gpu.weights.tensors import Shapes


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What one forward pass over packed rows needs. Tensors are on the device; row b's tokens are
    query_start[b] ... query_start[b + 1]. Valid until the next step is built.
    """

    token_ids: Tensor
    """[T] int64."""
    positions: Tensor
    """[T] int64, counted from the start of each sequence."""
    slot_mapping: Tensor
    """[T] int64: block id * block size + offset, where each token's key and value are written. -1: nowhere;
    such a token fills up a captured graph, and its row has context 0."""
    query_start: Tensor
    """[B + 1] int32."""
    context_lens: Tensor
    """[B] int32: entries of the row's context, this step's own, its last, included: tokens of the sequence
    without those of the blocks that have been dropped from its table."""
    block_tables: Tensor
    """[B, max_blocks] int32. Entries past ceil(context_len / block_size) are any valid block id."""
    logits_rows: Tensor
    """[R] int64: which of the T tokens yield logits."""
    sinks: Tensor | None = None
    """[B] int32, and"""
    windows: Tensor | None = None
    """[B] int32: a query that sees the first n entries of its context sees of these only the first `sinks`
    and the last `window`; window 0: all. None: every row sees all."""
    max_queries: int = 0
    """The most tokens of a row, known without asking the device; 1: all rows decode. 0: not said."""
    mass: Tensor | None = None
    """[B, max_blocks] int64, to be added to: how much the row's queries attended to each block of its table,
    summed over layers and query heads, in units of 2**-32. None: not asked for."""
    hidden_rows: Tensor | None = None
    """[H] int64, rising: which of the T tokens yield their hidden states, beside those of logits_rows; and"""
    hidden: Tensor | None = None
    """[H, C] fp32, to be written: these, after the final norm."""
    image_rows: Tensor | None = None
    """[E] int64: which of the T tokens are of images; and"""
    image_states: Tensor | None = None
    """[E, C]: what stands in the place of their embeddings."""


class LayerKv(NamedTuple):
    """One layer's paged keys and values, as KvLayout.kv_format says."""

    k: Tensor
    v: Tensor


class Linear(Protocol):
    """y = x W^T + b over weights that prepare_linear has put in the kernel's own layout."""

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out], a new tensor of x's dtype."""
        ...


Rotation: TypeAlias = tuple[Tensor, Tensor]
"""cos and sin of a step's tokens, [T, 1, D / 2] fp32."""

AttentionPlan: TypeAlias = Any
"""Indices and masks of one step, shared by all its layers; its type is the private matter of one Ops."""


class KvFormat(NamedTuple):
    """Of a layer's k, and of its v."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class KvLayout(Protocol):
    """What the dimensions of the cache mean is known only to those who write and read it."""

    kv_block_dim: ClassVar[int]
    """Which dimension of a kv_format's shape counts blocks; a block's content is the others, scales too."""

    def kv_format(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> KvFormat:
        """For the KvDtype that the layout was made for; kv.dtype.block_bytes says what a block takes."""
        ...


class Ops(KvLayout, Protocol):
    """Kernels over packed tokens. Results are new tensors unless a method says otherwise; every dtype is the
    model's (bf16 or fp32), and reductions are done in fp32. A token's result is bitwise independent of the
    other tokens in the call where the implementation can hold that (docs/decisions/0002).
    """

    block_kinds: frozenset[str]
    """Of a GGUF's blocks, those that linears run on as they are."""

    def prepare_linear(self, weight: Weight, bias: Tensor | None) -> Linear:
        """Take weight [out, in] and bias [out] over: the caller must not use them again.

        Args:
            weight: blocks only of block_kinds.
        """
        ...

    def embedding(self, token_ids: Tensor, table: Tensor) -> Tensor:
        """[T], [V, C] -> [T, C]."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight, the mean over C (Zhang & Sennrich 2019). [..., C] -> [..., C].

        The last product is in the weight's dtype, which may be fp32 (Gemma) where x is not.
        """
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """residual += x in place, then its rms_norm. [T, C], [T, C] -> [T, C]; x may be overwritten."""
        ...

    def rope_and_write_kv(
        self, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation, kv: LayerKv, slot_mapping: Tensor
    ) -> None:
        """Rotate q [T, H, D] in place, write the rotated k and v [T, Hkv, D] into the cache at slot_mapping
        [T]; k may be rotated in place or left as it is. All three may be views with strides of their own.

        Rotation (Su et al. 2021): element i is paired with i + D / 2 as in Llama.
        """
        ...

    def plan_attention(self, inputs: StepInputs) -> AttentionPlan:
        """Once a step, before its first attention call."""
        ...

    def attention(self, q: Tensor, kv: LayerKv, plan: AttentionPlan, scale: float, window: int = 0) -> Tensor:
        """Causal attention of [T, H, D] queries over the cache, this step's keys written. -> [T, H * D].

        Query head h reads key/value head h * Hkv // H. Prefill chunks and decode rows in any mixture.

        Args:
            window: of a layer with a sliding window: a query sees only the last so many entries of its
                context, its own included, no more than its row's window, and no sinks before them; 0: as
                the step's inputs say.
        """
        ...

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up, gate_up = [gate | up]: [T, 2 F] -> [T, F]."""
        ...

    def gelu_and_mul(self, gate_up: Tensor) -> Tensor:
        """As silu_and_mul, with GELU by its tanh formula (Hendrycks & Gimpel 2016)."""
        ...


class Model(Protocol):
    """A decoder with its weights on the device. Threads may each run a step at the same time."""

    def forward(self, inputs: StepInputs, layers: list[LayerKv]) -> Tensor:
        """Write the step's keys and values, and inputs.hidden; -> [R, V] logits of inputs.logits_rows."""
        ...


@runtime_checkable
class Sees(Protocol):
    """What a Model that reads images has beside: its encoder."""

    def see(self, pixels: Tensor) -> Tensor:
        """[3, S, S] uint8 of one image -> [n, C], the states of its tokens."""
        ...


class Family(NamedTuple):
    """A model written over Ops: what gpu.models registers."""

    shapes: Callable[[Architecture], Shapes]
    """Every tensor of a model, by Hugging Face name."""
    load: Callable[
        [Architecture, Iterable[tuple[str, Weight]], Ops, torch.dtype, torch.device],
        Model,
    ]
    """Consumes exactly these weights one by one. Raises ModelError naming the tensor at fault."""
