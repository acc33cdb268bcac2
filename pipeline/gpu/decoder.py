"""The parts that decoder families are made of, over Ops: shapes of their tensors, loading, attention.

A family (gpu.models) says which tensors a layer has and in which order its parts run.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.api import AttentionPlan, LayerKv, Linear, Ops, Rotation, StepInputs
from pipeline.gpu.rope import RopeTable
from pipeline.gpu.weights.tensors import Shapes, TensorBag

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
QKV = ("q_proj", "k_proj", "v_proj")
QKVO = (*QKV, "o_proj")


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's weights; the query, key and value products are one."""

    qkv: Linear
    output: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    rope: RopeTable
    window: int


class ForwardPass:
    """What the layers of one step share: inputs, the attention plan, rotations."""

    def __init__(self, ops: Ops, architecture: Architecture, inputs: StepInputs) -> None:
        self._ops, self._arch, self._inputs = ops, architecture, inputs
        self._plan: AttentionPlan = ops.plan_attention(inputs)
        self._rotations: dict[RopeTable, Rotation] = {}

    def embedded(self, table: Tensor) -> Tensor:
        """[T, C]: the step's tokens, those of images as their encoder sees them."""
        inputs = self._inputs
        x = self._ops.embedding(inputs.token_ids, table)
        if inputs.image_rows is not None and inputs.image_states is not None:
            x.index_copy_(0, inputs.image_rows, inputs.image_states)
        return x

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """[..., C] -> the same."""
        return self._ops.rms_norm(x, weight, self._arch.rms_norm_eps)

    def add_norm(self, change: Tensor | None, residual: Tensor, weight: Tensor) -> Tensor:
        """residual += change in place, where there is one, then its norm. [T, C] -> [T, C]."""
        if change is None:
            return self.norm(residual, weight)
        return self._ops.add_rms_norm(change, residual, weight, self._arch.rms_norm_eps)

    def ended(self, x: Tensor) -> Tensor:
        """x [T, C] is what the final norm gives: hidden states to whoever asked. -> [R, C], for logits."""
        inputs = self._inputs
        if inputs.hidden is not None and inputs.hidden_rows is not None:
            inputs.hidden.copy_(x[inputs.hidden_rows])
        return x[inputs.logits_rows]

    def attend(self, x: Tensor, layer: Attention, kv: LayerKv) -> Tensor:
        """[T, C] -> [T, C]; writes the step's keys and values."""
        ops, num_heads, num_kv_heads = self._ops, self._arch.num_heads, self._arch.num_kv_heads
        qkv = layer.qkv(x).view(x.shape[0], -1, self._arch.head_dim)
        q, k, v = torch.split(qkv, [num_heads, num_kv_heads, num_kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self.norm(q, layer.q_norm), self.norm(k, layer.k_norm)
        ops.rope_and_write_kv(q, k, v, self._rotation(layer.rope), kv, self._inputs.slot_mapping)
        return layer.output(ops.attention(q, kv, self._plan, self._arch.score_scale, layer.window))

    def _rotation(self, rope: RopeTable) -> Rotation:
        if rope not in self._rotations:
            self._rotations[rope] = rope.rows(self._inputs.positions)
        return self._rotations[rope]


def decoder_shapes(architecture: Architecture, layer: Shapes) -> Shapes:
    """All tensors of a model by Hugging Face name: `layer` holds those of one layer."""
    vocab, hidden = architecture.vocab_size, architecture.hidden_size
    shapes: Shapes = {EMBEDDING: (vocab, hidden), NORM: (hidden,)}
    if not architecture.tie_embeddings:
        shapes[HEAD] = (vocab, hidden)
    for i in range(architecture.num_layers):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def norm_shapes(architecture: Architecture, *names: str) -> Shapes:
    """Of norms over the hidden size."""
    return {f"{name}.weight": (architecture.hidden_size,) for name in names}


def attention_shapes(architecture: Architecture, biased: Collection[str] = ()) -> Shapes:
    """Of the four products, those of `biased` with a bias, and of the norms of queries and keys."""
    hidden, dim = architecture.hidden_size, architecture.head_dim
    q, kv = architecture.num_heads * dim, architecture.num_kv_heads * dim
    linears = {"q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, q)}
    shapes = _linear_shapes("self_attn", linears, biased)
    if architecture.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
    return shapes


def mlp_shapes(architecture: Architecture) -> Shapes:
    """Of a gated feed-forward."""
    hidden, inner = architecture.hidden_size, architecture.intermediate_size
    linears = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    return _linear_shapes("mlp", linears, linears if architecture.mlp_bias else ())


def _linear_shapes(part: str, linears: dict[str, tuple[int, int]], biased: Collection[str]) -> Shapes:
    shapes: Shapes = {}
    for name, shape in linears.items():
        shapes[f"{part}.{name}.weight"] = shape
        if name in biased:
            shapes[f"{part}.{name}.bias"] = shape[:1]
    return shapes


class LayerLoader:
    """Takes the tensors of one layer out of a bag."""

    def __init__(self, bag: TensorBag, number: int, ops: Ops) -> None:
        self._bag, self._ops = bag, ops
        self._prefix = f"model.layers.{number}."

    def weight(self, name: str) -> Tensor:
        return self._bag.take(f"{self._prefix}{name}.weight")

    def linear(self, *names: str) -> Linear:
        """One product for several, their outputs one after another."""
        weight = self._bag.take_product([f"{self._prefix}{name}.weight" for name in names])
        paths = [f"{self._prefix}{name}.bias" for name in names]
        biases = [self._bag.take(path) for path in paths if path in self._bag]
        return self._ops.prepare_linear(weight, torch.cat(biases) if biases else None)

    def attention(self, rope: RopeTable, window: int) -> Attention:
        return Attention(
            qkv=self.linear(*(f"self_attn.{name}" for name in QKV)),
            output=self.linear("self_attn.o_proj"),
            q_norm=self._optional("self_attn.q_norm"),
            k_norm=self._optional("self_attn.k_norm"),
            rope=rope,
            window=window,
        )

    def _optional(self, name: str) -> Tensor | None:
        return self.weight(name) if f"{self._prefix}{name}.weight" in self._bag else None
