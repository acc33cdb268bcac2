"""Llama 2 and 3, SmolLM2, and Mistral, whose layers may have a sliding window."""

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.api import Family
from pipeline.gpu.decoder import QKVO, attention_shapes
from pipeline.gpu.prenorm import pre_norm_family
from pipeline.gpu.weights.tensors import Shapes


def _attention(architecture: Architecture) -> Shapes:
    return attention_shapes(architecture, QKVO if architecture.attention_bias else ())


LLAMA = pre_norm_family(_attention)
FAMILIES: dict[str, Family] = {"llama": LLAMA, "mistral": LLAMA}
