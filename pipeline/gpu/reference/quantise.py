"""Keys and values as codes and scales (gpu.kv.dtype), in plain torch: the oracle of every other kernel's.

A stored row is one token's key, or value, in one head, as bytes: its codes, then its scales.
  int8  one byte a code, two's complement
  fp8   one byte a code, e4m3
  int4  two codes a byte, each plus 8: elements 2 i in the low four bits, 2 i + 1 in the high
Of an x in a group whose largest |x| is m, what comes back is within
  int8  scale / 2                       scale < (1 + 2^-7) m / 127
  fp8   max(|x| / 16, scale / 1024)     scale < (1 + 2^-7) m / 448
  int4  scale / 2                       scale < (1 + 2^-7) m / 7
as long as m / 448 is a normal number of fp32, and m is finite.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.gpu.kv.dtype import GROUP, MAX_CODE, SCALE_BYTES, KvDtype, code_bytes, num_scales


def row_bytes(head_dim: int, kv_dtype: KvDtype) -> int:
    """Of a stored row."""
    return code_bytes(head_dim, kv_dtype) + SCALE_BYTES * num_scales(head_dim, kv_dtype)


def quantise(x: Tensor, kv_dtype: KvDtype) -> Tensor:
    """[..., D] of any float dtype -> stored rows, [..., row_bytes] uint8."""
    groups = _in_groups(x.float(), kv_dtype)
    scales = round_up(groups.abs().amax(-1) / MAX_CODE[kv_dtype])
    divisors = scales.float()[..., None]
    codes = (groups / divisors).masked_fill_(divisors == 0, 0.0).flatten(-2)[..., : x.shape[-1]]
    return torch.cat((_codes_to_bytes(codes, kv_dtype), scales.view(torch.uint8)), -1)


def dequantise(rows: Tensor, head_dim: int, kv_dtype: KvDtype) -> Tensor:
    """Stored rows, [..., row_bytes] uint8 -> [..., D] fp32."""
    split = code_bytes(head_dim, kv_dtype)
    codes = _in_groups(_bytes_to_codes(rows[..., :split], kv_dtype), kv_dtype)
    scales = rows[..., split:].contiguous().view(torch.bfloat16).float()
    return (codes * scales[..., None]).flatten(-2)[..., :head_dim]


def round_up(x: Tensor) -> Tensor:
    """The smallest bf16 that is no less than x, fp32 and not negative."""
    bits = (x.contiguous().view(torch.int32) + 0xFFFF) >> 16
    return bits.to(torch.int16).view(torch.bfloat16)


def _in_groups(x: Tensor, kv_dtype: KvDtype) -> Tensor:
    # [..., D] -> [..., scales, elements of each], the last filled up with 0
    head_dim, count = x.shape[-1], num_scales(x.shape[-1], kv_dtype)
    size = GROUP if count > 1 else head_dim
    return F.pad(x, (0, count * size - head_dim)).reshape(*x.shape[:-1], count, size)


def _codes_to_bytes(codes: Tensor, kv_dtype: KvDtype) -> Tensor:
    # halves go to the even code
    if kv_dtype == "fp8":
        return codes.to(torch.float8_e4m3fn).view(torch.uint8)
    if kv_dtype == "int8":
        return codes.round().to(torch.int8).view(torch.uint8)
    nibbles = (codes.round() + 8).to(torch.uint8)
    return nibbles[..., ::2] | nibbles[..., 1::2] << 4


def _bytes_to_codes(stored: Tensor, kv_dtype: KvDtype) -> Tensor:
    if kv_dtype == "fp8":
        return stored.view(torch.float8_e4m3fn).float()
    if kv_dtype == "int8":
        return stored.view(torch.int8).float()
    return torch.stack((stored & 15, stored >> 4), -1).flatten(-2).float() - 8
