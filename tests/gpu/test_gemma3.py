"""Gemma 3 against transformers."""

from typing import Any

import msgspec
import pytest

from pipeline.checkpoint.card import RopeScaling
from tests.gpu.agreement import check_mixed_steps
from tests.gpu.driver import TINY

GEMMA: dict[str, Any] = {
    "family": "gemma3",
    "num_layers": 3,
    "tie_embeddings": True,
    "qk_norm": True,
    "post_norms": True,
    "activation": "gelu",
    "embedding_scale": TINY.hidden_size**0.5,
    "rope_theta": 1e6,
    "local_rope_theta": 1e4,
    "layer_windows": (40, 40, 0),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "local and global": GEMMA,
    "linear, other scale": GEMMA
    | {"rope_scaling": RopeScaling("linear", 8.0), "attention_scale": 0.2, "num_kv_heads": 1},
    "capped, untied": GEMMA | {"logits_cap": 3.0, "tie_embeddings": False, "layer_windows": (0, 129, 0)},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_packed_mixed_steps_match_transformers(name: str) -> None:
    check_mixed_steps(msgspec.structs.replace(TINY, **VARIANTS[name]))
