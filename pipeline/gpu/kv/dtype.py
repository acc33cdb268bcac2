"""What a key or value is stored as, and what that takes. Without torch, so that a plan needs no device.

Quantised ones keep codes, with scales in the same block: whoever copies or shares a block has both.
  int8  code in -127..127, one scale for each token and head
  fp8   code in e4m3 (OCP 8-bit floating point), one scale for each token and head
  int4  code in -7..7, two to a byte, one scale for each GROUP elements of a token in a head
A scale is bf16, rounded up, so that no code is clipped; the codes are of the rounded scale.
"""

from typing import Literal, TypeAlias

from pipeline.checkpoint.card import Architecture

KvDtype: TypeAlias = Literal["fp32", "bf16", "int8", "fp8", "int4"]

GROUP = 32
SCALE_BYTES = 2
MAX_CODE: dict[KvDtype, float] = {"int8": 127.0, "fp8": 448.0, "int4": 7.0}
"""Of the quantised ones."""


def is_quantised(kv_dtype: KvDtype) -> bool:
    return kv_dtype in MAX_CODE


def num_scales(head_dim: int, kv_dtype: KvDtype) -> int:
    """Of one token's key, or value, in one head."""
    if kv_dtype == "int4":
        return -(-head_dim // GROUP)
    return int(is_quantised(kv_dtype))


def code_bytes(head_dim: int, kv_dtype: KvDtype) -> int:
    """Of one token's key, or value, in one head, without its scales."""
    if kv_dtype == "int4":
        return head_dim // 2
    return head_dim * {"fp32": 4, "bf16": 2, "int8": 1, "fp8": 1}[kv_dtype]


def token_bytes(architecture: Architecture, kv_dtype: KvDtype) -> int:
    """Of one token: keys and values of all layers and heads, with their scales."""
    row = code_bytes(architecture.head_dim, kv_dtype)
    row += SCALE_BYTES * num_scales(architecture.head_dim, kv_dtype)
    return architecture.num_layers * 2 * architecture.num_kv_heads * row


def block_bytes(architecture: Architecture, block_size: int, kv_dtype: KvDtype) -> int:
    """Of one block: keys and values of block_size tokens in all layers."""
    return block_size * token_bytes(architecture, kv_dtype)
