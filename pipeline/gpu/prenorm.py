"""The decoder that Llama has made common: norm before attention and before a SwiGLU feed-forward."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.api import Family, LayerKv, Linear, Model, Ops, StepInputs
from pipeline.gpu.decoder import (
    EMBEDDING,
    HEAD,
    NORM,
    Attention,
    ForwardPass,
    LayerLoader,
    decoder_shapes,
    mlp_shapes,
    norm_shapes,
)
from pipeline.gpu.rope import RopeTable, rope_tables
from pipeline.gpu.weights.blocks import Weight
from pipeline.gpu.weights.tensors import Shapes, collect


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights; gate and up are one product."""

    input_norm: Tensor
    attention: Attention
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class PreNormDecoder:
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
        self._layers = layers
        self._norm = norm
        self._head = head

    def forward(self, inputs: StepInputs, layers: list[LayerKv]) -> Tensor:
        ops = self._ops
        step = ForwardPass(ops, self._arch, inputs)
        residual = step.embedded(self._embedding)
        change: Tensor | None = None
        for layer, kv in zip(self._layers, layers, strict=True):
            x = step.attend(step.add_norm(change, residual, layer.input_norm), layer.attention, kv)
            x = step.add_norm(x, residual, layer.mlp_norm)
            change = layer.down(ops.silu_and_mul(layer.gate_up(x)))
        x = step.add_norm(change, residual, self._norm)
        return self._head(step.ended(x))


def pre_norm_family(attention: Callable[[Architecture], Shapes]) -> Family:
    """The family whose attention has the tensors that `attention` names, without "model.layers.N."."""

    def shapes(architecture: Architecture) -> Shapes:
        norms = norm_shapes(architecture, "input_layernorm", "post_attention_layernorm")
        return decoder_shapes(architecture, norms | attention(architecture) | mlp_shapes(architecture))

    def load(
        architecture: Architecture,
        weights: Iterable[tuple[str, Weight]],
        ops: Ops,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Model:
        bag = collect(weights, shapes(architecture), dtype, device, block_kinds=ops.block_kinds)
        embedding = bag.take(EMBEDDING)
        layers = [
            _load_layer(LayerLoader(bag, i, ops), rope, architecture.window(i))
            for i, rope in enumerate(rope_tables(architecture, device))
        ]
        head: Weight = embedding if architecture.tie_embeddings else bag.take_product([HEAD])
        head_linear = ops.prepare_linear(head, None)
        return PreNormDecoder(architecture, ops, embedding, layers, bag.take(NORM), head_linear)

    return Family(shapes, load)


def _load_layer(loader: LayerLoader, rope: RopeTable, window: int) -> Layer:
    return Layer(
        input_norm=loader.weight("input_layernorm"),
        attention=loader.attention(rope, window),
        mlp_norm=loader.weight("post_attention_layernorm"),
        gate_up=loader.linear("mlp.gate_proj", "mlp.up_proj"),
        down=loader.linear("mlp.down_proj"),
    )
