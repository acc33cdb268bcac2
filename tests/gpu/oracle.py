"""Hugging Face transformers as the judge of our models."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from pipeline.checkpoint.card import Architecture

MODELS: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
}


def hugging_face(architecture: Architecture, tensors: Iterable[tuple[str, Tensor]]) -> PreTrainedModel:
    """The same decoder by transformers, in fp32."""
    config_class, model_class = MODELS[architecture.family]
    config = config_class(
        vocab_size=architecture.vocab_size,
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.intermediate_size,
        num_hidden_layers=architecture.num_layers,
        num_attention_heads=architecture.num_heads,
        num_key_value_heads=architecture.num_kv_heads,
        head_dim=architecture.head_dim,
        max_position_embeddings=architecture.max_position,
        rms_norm_eps=architecture.rms_norm_eps,
        tie_word_embeddings=architecture.tie_embeddings,
        attention_bias=architecture.attention_bias,
        mlp_bias=architecture.mlp_bias,
        **(_of_gemma3 if architecture.family == "gemma3" else _of_others)(architecture),
    )
    model: PreTrainedModel = model_class(config).eval()
    weights = {name: _as_published(architecture, name, tensor) for name, tensor in tensors}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert missing == (["lm_head.weight"] if architecture.tie_embeddings else [])
    return model


def _as_published(architecture: Architecture, name: str, tensor: Tensor) -> Tensor:
    is_norm = architecture.family == "gemma3" and name.endswith("norm.weight")
    return tensor.float() - 1 if is_norm else tensor.float()


def _of_others(architecture: Architecture) -> dict[str, Any]:
    fields: dict[str, Any] = {"rope_parameters": _rope(architecture)}
    if window := max(architecture.layer_windows, default=0):
        fields |= {"sliding_window": window}
    elif architecture.family == "mistral":
        fields |= {"sliding_window": None}
    return fields


def _of_gemma3(architecture: Architecture) -> dict[str, Any]:
    kinds = ["sliding_attention" if window else "full_attention" for window in architecture.layer_windows]
    local = {"rope_type": "default", "rope_theta": architecture.local_rope_theta}
    return {
        "layer_types": kinds,
        "sliding_window": max(architecture.layer_windows),
        "rope_parameters": {"full_attention": _rope(architecture), "sliding_attention": local},
        "query_pre_attn_scalar": round(architecture.score_scale**-2),
        "final_logit_softcapping": architecture.logits_cap or None,
    }


def _rope(architecture: Architecture) -> dict[str, Any]:
    scaling = architecture.rope_scaling
    rope = {"rope_type": "default", "rope_theta": architecture.rope_theta}
    if scaling is not None:
        rope |= {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            rope |= {
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_position,
            }
    return rope


def logits_sync(model: PreTrainedModel, token_ids: list[int]) -> Tensor:
    """Of every prefix: [len(token_ids), V]."""
    with torch.inference_mode():
        found: Tensor = model(torch.tensor([token_ids])).logits[0]
    return found
