"""Qwen3: as Llama, with queries and keys normed head by head (Architecture.qk_norm)."""

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.api import Family
from pipeline.gpu.decoder import QKVO, attention_shapes
from pipeline.gpu.prenorm import pre_norm_family
from pipeline.gpu.weights.tensors import Shapes


def _attention(architecture: Architecture) -> Shapes:
    return attention_shapes(architecture, QKVO if architecture.attention_bias else ())


FAMILIES: dict[str, Family] = {"qwen3": pre_norm_family(_attention)}
