"""Llama and Mistral against transformers."""

from typing import Any

import msgspec
import pytest

from pipeline.checkpoint.card import RopeScaling
from tests.gpu.agreement import check_mixed_steps
from tests.gpu.driver import TINY

VARIANTS: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"tie_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "no grouping": {"num_kv_heads": 6},
    "linear": {"rope_scaling": RopeScaling("linear", 4.0)},
    "llama3": {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 64)},
    "window": {"family": "mistral", "layer_windows": (100, 100)},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_packed_mixed_steps_match_transformers(name: str) -> None:
    check_mixed_steps(msgspec.structs.replace(TINY, **VARIANTS[name]))
