"""GGUF -> ModelCard: hyperparameters, tokenizer, special ids and chat template from its metadata."""

import math
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pipeline.checkpoint.card import Architecture, ModelCard, RopeScaling
from pipeline.checkpoint.chat_end import eos_ids
from pipeline.checkpoint.gguf_header import GgufHeader, read_header
from pipeline.checkpoint.gguf_tokenizer import build_tokenizer, read_vocabulary
from pipeline.errors import ModelError

ROPE_FACTORS = "rope_freqs.weight"
"""Llama 3.1 and later: what each rotary frequency is divided by, float32 of shape [head_dim / 2]."""

_QUANTIZATION = re.compile(r"[.-](?:I?Q\d\w*|T?Q\d_\w+|MXFP4\w*|BF16|F16|F32)$", re.IGNORECASE)


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
    sliding_window: int | None = msgspec.field(name="attention.sliding_window", default=None)
    rotary_dimensions: int | None = msgspec.field(name="rope.dimension_count", default=None)
    rope_theta: float = msgspec.field(name="rope.freq_base", default=10000.0)
    scaling_type: str = msgspec.field(name="rope.scaling.type", default="none")
    scaling_factor: float = msgspec.field(name="rope.scaling.factor", default=1.0)
    scale_linear: float = msgspec.field(name="rope.scale_linear", default=1.0)
    expert_count: int = 0

    @property
    def head_dim(self) -> int:
        return self.key_length or self.embedding_length // self.head_count


def describe_gguf(path: Path, reference: str, name: str | None = None) -> ModelCard:
    """The card of the GGUF file at `path`. Raises ModelError if it cannot be read or served."""
    header = read_header(path)
    vocabulary = read_vocabulary(header)
    template = header.metadata.get("tokenizer.chat_template")
    template = template if isinstance(template, str) else None
    tokenizer = build_tokenizer(header, vocabulary)
    named = (vocabulary.eos_token_id, vocabulary.eot_token_id, vocabulary.eom_token_id)
    return ModelCard(
        name=name or display_name(path),
        reference=reference,
        path=path,
        format="gguf",
        architecture=_architecture(header),
        tokenizer_json=tokenizer.to_str(),
        chat_template=template,
        bos_token=vocabulary.token(vocabulary.bos_token_id),
        eos_token=vocabulary.token(vocabulary.eos_token_id),
        eos_ids=eos_ids(named, template, tokenizer.token_to_id),
    )


def display_name(path: Path) -> str:
    """The file's name without its quantization; general.name often is that of a training run."""
    return _QUANTIZATION.sub("", path.stem)


def _architecture(header: GgufHeader) -> Architecture:
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
    )


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
    if keys.sliding_window and keys.sliding_window < keys.context_length:
        raise ModelError(
            f"{header.path} attends over a sliding window of {keys.sliding_window} of {keys.context_length} "
            "tokens, which cannot be served"
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
