"""The Llama family: Llama 2 and 3, Mistral, SmolLM2. Written over Ops alone."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.api import AttentionPlan, Family, LayerKv, Linear, Ops, StepInputs
from pipeline.gpu.rope import RopeTable
from pipeline.gpu.tensors import Shapes, TensorBag, collect


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder block's weights; the query, key and value products are one, gate and up too."""

    input_norm: Tensor
    qkv: Linear
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class Llama:
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
        self._rope = RopeTable(architecture, embedding.device)
        self._scale = architecture.head_dim**-0.5

    @classmethod
    def load(
        cls,
        architecture: Architecture,
        tensors: Iterable[tuple[str, Tensor]],
        ops: Ops,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "Llama":
        bag = collect(tensors, expected_shapes(architecture), dtype, device)
        embedding = bag.take("model.embed_tokens.weight")
        layers = [_load_layer(bag, f"model.layers.{i}.", ops) for i in range(architecture.num_layers)]
        head = embedding if architecture.tie_embeddings else bag.take("lm_head.weight")
        norm = bag.take("model.norm.weight")
        return cls(architecture, ops, embedding, layers, norm, ops.prepare_linear(head, None))

    def forward(self, inputs: StepInputs, layers: list[LayerKv]) -> Tensor:
        ops, eps = self._ops, self._arch.rms_norm_eps
        plan = ops.plan_attention(inputs)
        rotation = self._rope.rows(inputs.positions)
        residual = ops.embedding(inputs.token_ids, self._embedding)
        change: Tensor | None = None
        for layer, kv in zip(self._layers, layers, strict=True):
            x = self._norm_input(change, residual, layer.input_norm)
            x = self._attend(x, layer, kv, inputs.slot_mapping, plan, rotation)
            x = ops.add_rms_norm(x, residual, layer.mlp_norm, eps)
            change = layer.down(ops.silu_and_mul(layer.gate_up(x)))
        x = self._norm_input(change, residual, self._norm)
        return self._head(x[inputs.logits_rows])

    def _norm_input(self, change: Tensor | None, residual: Tensor, weight: Tensor) -> Tensor:
        eps = self._arch.rms_norm_eps
        if change is None:
            return self._ops.rms_norm(residual, weight, eps)
        return self._ops.add_rms_norm(change, residual, weight, eps)

    def _attend(
        self,
        x: Tensor,
        layer: Layer,
        kv: LayerKv,
        slot_mapping: Tensor,
        plan: AttentionPlan,
        rotation: tuple[Tensor, Tensor],
    ) -> Tensor:
        # [T, C] -> [T, C]
        ops, num_heads, num_kv_heads = self._ops, self._arch.num_heads, self._arch.num_kv_heads
        qkv = layer.qkv(x).view(x.shape[0], -1, self._arch.head_dim)
        ops.rope(qkv[:, : num_heads + num_kv_heads], *rotation)
        q, k, v = torch.split(qkv, [num_heads, num_kv_heads, num_kv_heads], dim=1)
        ops.write_kv(k, v, kv, slot_mapping)
        return layer.output(ops.attention(q, kv, plan, self._scale))


def expected_shapes(architecture: Architecture) -> Shapes:
    """Every tensor the family has, by Hugging Face name."""
    vocab, hidden = architecture.vocab_size, architecture.hidden_size
    shapes: Shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not architecture.tie_embeddings:
        shapes["lm_head.weight"] = (vocab, hidden)
    for i in range(architecture.num_layers):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in _layer_shapes(architecture).items()}
    return shapes


def _layer_shapes(architecture: Architecture) -> Shapes:
    hidden, inner = architecture.hidden_size, architecture.intermediate_size
    q = architecture.num_heads * architecture.head_dim
    kv = architecture.num_kv_heads * architecture.head_dim
    attention = {"q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, q)}
    mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    shapes: Shapes = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    groups = (("self_attn", attention, architecture.attention_bias), ("mlp", mlp, architecture.mlp_bias))
    for part, linears, has_bias in groups:
        for name, shape in linears.items():
            shapes[f"{part}.{name}.weight"] = shape
            if has_bias:
                shapes[f"{part}.{name}.bias"] = shape[:1]
    return shapes


def _load_layer(bag: TensorBag, prefix: str, ops: Ops) -> Layer:
    def linear(*names: str) -> Linear:
        weights = [bag.take(f"{prefix}{name}.weight") for name in names]
        biases = [bag.take(f"{prefix}{name}.bias") for name in names if f"{prefix}{name}.bias" in bag]
        return ops.prepare_linear(torch.cat(weights), torch.cat(biases) if biases else None)

    return Layer(
        input_norm=bag.take(prefix + "input_layernorm.weight"),
        qkv=linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        output=linear("self_attn.o_proj"),
        mlp_norm=bag.take(prefix + "post_attention_layernorm.weight"),
        gate_up=linear("mlp.gate_proj", "mlp.up_proj"),
        down=linear("mlp.down_proj"),
    )


FAMILIES: dict[str, Family] = {"llama": Llama, "mistral": Llama}
