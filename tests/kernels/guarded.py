"""Tensors between pages of memory that nobody may touch.

A tensor ends where such a page begins: to read or write behind it is a fault. The margin before it, up to a
page and then a page that faults too, is filled with a pattern, and looked at when the test is over.
"""

import ctypes
import math
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

PAGE = mmap.PAGESIZE
PATTERN = 0xA5
_margins: list[Tensor] = []
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def guarded(values: Tensor) -> Tensor:
    """A contiguous copy."""
    return poisoned(values.shape, values.dtype).copy_(values)


def poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Full of NaN, or of the bytes PATTERN where the dtype has none."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if not num_bytes:
        return torch.empty(shape, dtype=dtype)
    room = -(-num_bytes // PAGE) * PAGE
    memory = mmap.mmap(-1, room + 2 * PAGE)
    everything = torch.frombuffer(memory, dtype=torch.uint8).fill_(PATTERN)
    for page in (0, PAGE + room):
        _forbid(everything.data_ptr() + page)
    margin = room - num_bytes
    if margin:
        _margins.append(torch.frombuffer(memory, dtype=torch.uint8, count=margin, offset=PAGE))
    span = torch.frombuffer(memory, dtype=torch.uint8, count=num_bytes, offset=PAGE + margin)
    tensor = span.view(dtype).view(shape)
    return tensor.fill_(math.nan) if dtype.is_floating_point else tensor


@contextmanager
def poisoned_outputs() -> Iterator[None]:
    """What a launcher allocates with torch.empty is poisoned."""

    def empty(*sizes: int | tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        shape = sizes[0] if isinstance(sizes[0], tuple) else sizes
        return poisoned(shape, dtype)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        yield


def _forbid(address: int) -> None:
    no_access = 0  # PROT_NONE
    if _libc.mprotect(address, PAGE, no_access):
        raise OSError(ctypes.get_errno(), "mprotect")


def take_margins() -> list[Tensor]:
    """Those of all tensors since the last call."""
    margins, _margins[:] = _margins[:], []
    return margins


def check(margins: list[Tensor]) -> None:
    for margin in margins:
        assert bool((margin == PATTERN).all()), "something has been written before the start of a tensor"
