"""Qwen2 and Qwen3 against transformers."""

from typing import Any

import msgspec
import pytest

from tests.gpu.agreement import check_mixed_steps
from tests.gpu.driver import TINY

VARIANTS: dict[str, dict[str, Any]] = {
    "qwen2": {"family": "qwen2"},
    "qwen2 tied": {"family": "qwen2", "tie_embeddings": True, "rope_theta": 1e6},
    "qwen3": {"family": "qwen3", "qk_norm": True},
    "qwen3 wide heads": {"family": "qwen3", "qk_norm": True, "head_dim": 32, "attention_bias": True},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_packed_mixed_steps_match_transformers(name: str) -> None:
    check_mixed_steps(msgspec.structs.replace(TINY, **VARIANTS[name]))
