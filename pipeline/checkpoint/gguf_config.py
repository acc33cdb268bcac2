"""The metadata of a GGUF file -> Architecture, family by family."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import numpy as np

from pipeline.checkpoint.card import Architecture, RopeScaling
from pipeline.checkpoint.gguf_header import GgufHeader
from pipeline.errors import ModelError

ROPE_FACTORS = "rope_freqs.weight"
"""Llama 3.1 and later: what each rotary frequency is divided by, float32 of shape [head_dim / 2]."""

GEMMA3_27B_LAYERS = 62
"""The one Gemma 3 whose scores are not scaled by head_dim ** -0.5; no key says so (llama.cpp, gemma3)."""

Fields: TypeAlias = dict[str, Any]


class _Keys(msgspec.Struct, frozen=True):
    """The metadata under the architecture's name, as far as a decoder of the Llama kind needs it."""

    block_count: int
    context_length: int
    embedding_length: int
    feed_forward_length: int
    head_count: int = msgspec.field(name="attention.head_count")
    rms_norm_eps: float = msgspec.field(name="attention.layer_norm_rms_epsilon")
    head_count_kv: int | None = msgspec.field(name="attention.head_count_kv", default=None)
    key_length: int | None = msgspec.field(name="attention.key_length", default=None)
    value_length: int | None = msgspec.field(name="attention.value_length", default=None)
    sliding_window: int = msgspec.field(name="attention.sliding_window", default=0)
    local_layers: int | list[bool] = msgspec.field(name="attention.sliding_window_pattern", default=6)
    local_rope_theta: float = msgspec.field(name="rope.freq_base_swa", default=10000.0)
    attention_cap: float = msgspec.field(name="attn_logit_softcapping", default=0.0)
    logits_cap: float = msgspec.field(name="final_logit_softcapping", default=0.0)
    rotary_dimensions: int | None = msgspec.field(name="rope.dimension_count", default=None)
    rope_theta: float = msgspec.field(name="rope.freq_base", default=10000.0)
    scaling_type: str = msgspec.field(name="rope.scaling.type", default="none")
    scaling_factor: float = msgspec.field(name="rope.scaling.factor", default=1.0)
    scale_linear: float = msgspec.field(name="rope.scale_linear", default=1.0)
    expert_count: int = 0

    @property
    def head_dim(self) -> int:
        return self.key_length or self.embedding_length // self.head_count

    @property
    def effective_window(self) -> int:
        """0 where every query of a context as long as may be sees all of it."""
        return self.sliding_window if self.sliding_window < self.context_length else 0


def architecture_of(header: GgufHeader) -> Architecture:
    """Raises ModelError for what the file asks for and cannot be served."""
    family = str(header.metadata.get("general.architecture", ""))
    keys = _keys(header, family)
    embeddings = header.tensors.get("token_embd.weight")
    if embeddings is None:
        raise ModelError(f"{header.path} has no tensor token_embd.weight: it is not a whole language model")
    return Architecture(
        family=family,
        num_layers=keys.block_count,
        hidden_size=keys.embedding_length,
        intermediate_size=keys.feed_forward_length,
        num_heads=keys.head_count,
        num_kv_heads=keys.head_count_kv or keys.head_count,
        head_dim=keys.head_dim,
        vocab_size=embeddings.shape[0],
        max_position=keys.context_length,
        rms_norm_eps=float(str(np.float32(keys.rms_norm_eps))),
        rope_theta=keys.rope_theta,
        rope_scaling=_rope_scaling(header, keys),
        tie_embeddings="output.weight" not in header.tensors,
        attention_bias="blk.0.attn_q.bias" in header.tensors,
        mlp_bias="blk.0.ffn_up.bias" in header.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in header.tensors,
        **FAMILIES.get(family, _other)(header, keys),
    )


def _llama(header: GgufHeader, keys: _Keys) -> Fields:
    window = keys.effective_window  # Mistral's
    return {"layer_windows": (window,) * keys.block_count if window else ()}


def _gemma3(header: GgufHeader, keys: _Keys) -> Fields:
    if keys.attention_cap:
        raise ModelError(f"{header.path} caps the scores of attention, which cannot be served")
    every = keys.local_layers
    local = [bool((i + 1) % every) for i in range(keys.block_count)] if isinstance(every, int) else every
    is_27b = keys.block_count == GEMMA3_27B_LAYERS
    return {
        "layer_windows": tuple(keys.sliding_window if is_local else 0 for is_local in local),
        "local_rope_theta": keys.local_rope_theta,
        "post_norms": True,
        "activation": "gelu",
        "embedding_scale": keys.embedding_length**0.5,
        "attention_scale": (keys.embedding_length / keys.head_count if is_27b else keys.head_dim) ** -0.5,
        "logits_cap": keys.logits_cap,
    }


def _other(header: GgufHeader, keys: _Keys) -> Fields:
    if keys.effective_window:
        raise ModelError(
            f"{header.path} attends over a sliding window of {keys.sliding_window} of {keys.context_length} "
            "tokens, which cannot be served"
        )
    return {}


FAMILIES: dict[str, Callable[[GgufHeader, _Keys], Fields]] = {"llama": _llama, "gemma3": _gemma3}
"""By general.architecture: what a family's Architecture has beside the fields that all have."""


def _keys(header: GgufHeader, family: str) -> _Keys:
    prefix = family + "."
    values: dict[str, Any] = {
        key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)
    }
    try:
        keys = msgspec.convert(values, _Keys)
    except msgspec.ValidationError as error:
        raise ModelError(
            f"{header.path}: the architecture {family!r} is not a decoder of the Llama kind: {error}"
        ) from error
    _refuse_unsupported(header, keys)
    return keys


def _refuse_unsupported(header: GgufHeader, keys: _Keys) -> None:
    if header.metadata.get("split.count", 1) not in (0, 1):
        raise ModelError(f"{header.path} is one part of several. Merge them: llama-gguf-split --merge.")
    if keys.expert_count:
        raise ModelError(f"{header.path} is a mixture of {keys.expert_count} experts, which cannot be served")
    if keys.value_length not in (None, keys.head_dim):
        raise ModelError(
            f"{header.path} has values of {keys.value_length} elements a head and keys of {keys.head_dim}, "
            "which cannot be served"
        )
    if keys.rotary_dimensions not in (None, keys.head_dim):
        raise ModelError(
            f"{header.path} rotates {keys.rotary_dimensions} of {keys.head_dim} dimensions of a head, "
            "which cannot be served"
        )


def _rope_scaling(header: GgufHeader, keys: _Keys) -> RopeScaling | None:
    if ROPE_FACTORS in header.tensors:
        return _llama3_scaling(header, keys)
    if keys.scaling_type not in ("none", "linear"):
        raise ModelError(
            f"{header.path} scales rope by {keys.scaling_type!r}; 'linear' and Llama 3's can be served"
        )
    factor = keys.scaling_factor if keys.scaling_type == "linear" else keys.scale_linear
    return RopeScaling(kind="linear", factor=factor) if factor != 1.0 else None


def _llama3_scaling(header: GgufHeader, keys: _Keys) -> RopeScaling:
    """A GGUF file holds the divisors only; the published parameters must give the same ones."""
    tensor = header.tensors[ROPE_FACTORS]
    stored = np.fromfile(header.path, np.float32, tensor.shape[0], offset=tensor.offset)
    scaling = RopeScaling(kind="llama3", factor=float(stored.max()))
    if not np.allclose(stored, llama3_divisors(scaling, keys.rope_theta, keys.head_dim), rtol=1e-3):
        raise ModelError(f"{header.path} scales rope by factors ({ROPE_FACTORS}) that are not Llama 3's")
    return scaling


def llama3_divisors(scaling: RopeScaling, theta: float, head_dim: int) -> list[float]:
    """What Llama 3.1 divides each of the head_dim / 2 rotary frequencies by.

    Source: `_compute_llama3_parameters` of Hugging Face transformers, after Meta's reference code.
    """
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    divisors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / head_dim)
        rotations = scaling.original_max_position / wavelength
        smooth = min(1.0, max(0.0, (rotations - low) / (high - low)))
        divisors.append(1 / ((1 - smooth) / scaling.factor + smooth))
    return divisors
