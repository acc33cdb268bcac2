"""Gemma 3, text only: norms before and after attention and feed-forward, GeGLU, queries and keys normed, and
local layers - a sliding window, a rotation of their own - between those that see the whole context.

Weights of norms are as multiplied: the 1 that Gemma's own files leave out has been added (gpu.weights.load).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.api import Family, LayerKv, Linear, Model, Ops, StepInputs
from pipeline.gpu.decoder import (
    EMBEDDING,
    HEAD,
    NORM,
    QKVO,
    Attention,
    ForwardPass,
    LayerLoader,
    attention_shapes,
    decoder_shapes,
    mlp_shapes,
    norm_shapes,
)
from pipeline.gpu.rope import RopeTable, rope_tables
from pipeline.gpu.weights.blocks import Weight
from pipeline.gpu.weights.tensors import Shapes, collect

NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights; gate and up are one product. Norms are fp32."""

    input_norm: Tensor
    attention: Attention
    post_attention_norm: Tensor
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    post_mlp_norm: Tensor


class Gemma3:
    """Implements gpu.api.Model."""

    def __init__(
        self,
        architecture: Architecture,
        ops: Ops,
        embedding: Tensor,
        layers: list[Layer],
        norm: Tensor,
        head: Linear,
    ) -> None:
        self._arch = architecture
        self._ops = ops
        self._embedding = embedding
        self._scale = torch.tensor(architecture.embedding_scale, dtype=embedding.dtype)  # rounded: as trained
        self._layers = layers
        self._norm = norm
        self._head = head

    def forward(self, inputs: StepInputs, layers: list[LayerKv]) -> Tensor:
        ops = self._ops
        step = ForwardPass(ops, self._arch, inputs)
        residual = ops.embedding(inputs.token_ids, self._embedding).mul_(self._scale)
        change: Tensor | None = None
        for layer, kv in zip(self._layers, layers, strict=True):
            x = step.attend(step.add_norm(change, residual, layer.input_norm), layer.attention, kv)
            x = step.add_norm(step.norm(x, layer.post_attention_norm), residual, layer.mlp_norm)
            change = step.norm(layer.down(ops.gelu_and_mul(layer.gate_up(x))), layer.post_mlp_norm)
        x = step.add_norm(change, residual, self._norm)
        return self._capped(self._head(step.ended(x)))

    def _capped(self, logits: Tensor) -> Tensor:
        cap = self._arch.logits_cap
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits


def _shapes(architecture: Architecture) -> Shapes:
    norms = norm_shapes(architecture, *NORMS)
    attention = attention_shapes(architecture, QKVO if architecture.attention_bias else ())
    return decoder_shapes(architecture, norms | attention | mlp_shapes(architecture))


def _load(
    architecture: Architecture,
    weights: Iterable[tuple[str, Weight]],
    ops: Ops,
    dtype: torch.dtype,
    device: torch.device,
) -> Model:
    bag = collect(weights, _shapes(architecture), dtype, device, "norm.weight", ops.block_kinds)
    embedding = bag.take(EMBEDDING)
    layers = [
        _load_layer(LayerLoader(bag, i, ops), rope, architecture.window(i))
        for i, rope in enumerate(rope_tables(architecture, device))
    ]
    head: Weight = embedding if architecture.tie_embeddings else bag.take_product([HEAD])
    head_linear = ops.prepare_linear(head, None)
    return Gemma3(architecture, ops, embedding, layers, bag.take(NORM), head_linear)


def _load_layer(loader: LayerLoader, rope: RopeTable, window: int) -> Layer:
    return Layer(
        input_norm=loader.weight("input_layernorm"),
        attention=loader.attention(rope, window),
        post_attention_norm=loader.weight("post_attention_layernorm"),
        mlp_norm=loader.weight("pre_feedforward_layernorm"),
        gate_up=loader.linear("mlp.gate_proj", "mlp.up_proj"),
        down=loader.linear("mlp.down_proj"),
        post_mlp_norm=loader.weight("post_feedforward_layernorm"),
    )


FAMILIES: dict[str, Family] = {"gemma3": Family(_shapes, _load)}
