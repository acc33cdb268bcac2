"""Qwen2 and Qwen2.5: as Llama, with biases on queries, keys and values."""

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.api import Family
from pipeline.gpu.decoder import QKV, attention_shapes
from pipeline.gpu.prenorm import pre_norm_family
from pipeline.gpu.weights.tensors import Shapes


def _attention(architecture: Architecture) -> Shapes:
    return attention_shapes(architecture, QKV)


FAMILIES: dict[str, Family] = {"qwen2": pre_norm_family(_attention)}
