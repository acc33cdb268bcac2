"""The inputs of a step, one after another in one piece of host memory that goes to the device in one copy."""

import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipeline.gpu.device import Completion, Device, Uploader

ALIGNMENT = 64
"""Bytes. Kernels are compiled for addresses that are multiples of 16; a memory transaction is 32 or more."""

Array = npt.NDArray[Any]


class StepBuffer(Protocol):
    """begin(), any number of put()s, upload(), and guard() once the step is launched."""

    def begin(self) -> None:
        """The tensors of the last step must not be given to anything more."""
        ...

    def put(self, values: Array, shape: tuple[int, ...] | None = None, fill: int = 0) -> Tensor:
        """The values on the device, once uploaded. Valid until the next step's begin.

        Args:
            shape: if given, as large as that of the values or larger, and the rest is `fill`.
        """
        ...

    def upload(self) -> None: ...

    def guard(self, completion: Completion) -> None:
        """The host memory of this step is used again only when that is done."""
        ...

    def wait_sync(self) -> None:
        """For all that may still be read."""
        ...


def new_buffer(device: Device, num_bytes: int) -> StepBuffer:
    """num_bytes: what most steps need."""
    return HostBuffer() if device.uploader is None else PackedBuffer(device.uploader, num_bytes)


class HostBuffer:
    """For a device that reads host memory: the values are where they were made. Implements StepBuffer."""

    def begin(self) -> None:
        """Each step has memory of its own."""

    def put(self, values: Array, shape: tuple[int, ...] | None = None, fill: int = 0) -> Tensor:
        if shape is not None and shape != values.shape:
            values, given = np.full(shape, fill, values.dtype), values
            values[tuple(map(slice, given.shape))] = given
        return torch.from_numpy(values)

    def upload(self) -> None:
        """They are there."""

    def guard(self, completion: Completion) -> None:
        """Done when it was launched."""

    def wait_sync(self) -> None:
        """There is nothing to wait for."""


class PackedBuffer:
    """One copy a step. The same puts lie at the same addresses in every step, as captured graphs need it.
    What does not fit goes into a further piece, with a copy of its own: some sampling columns have no bound.
    Implements StepBuffer.

    Args:
        num_bytes: of the first piece.
    """

    def __init__(self, device: Uploader, num_bytes: int) -> None:
        self._device = device
        self._pieces = [_Piece(device, num_bytes)]

    def begin(self) -> None:
        for piece in self._pieces:
            piece.begin()

    def put(self, values: Array, shape: tuple[int, ...] | None = None, fill: int = 0) -> Tensor:
        size = values.size if shape is None else math.prod(shape)
        piece = self._piece_for(size * values.itemsize)
        return piece.put(values, size, values.shape if shape is None else shape, fill)

    def upload(self) -> None:
        for piece in self._pieces:
            piece.upload()

    def guard(self, completion: Completion) -> None:
        for piece in self._pieces:
            piece.guard(completion)

    def wait_sync(self) -> None:
        for piece in self._pieces:
            piece.wait_sync()

    def _piece_for(self, num_bytes: int) -> "_Piece":
        for piece in self._pieces:
            if piece.has_room(num_bytes):
                return piece
        self._pieces.append(_Piece(self._device, 2 * aligned(num_bytes)))
        return self._pieces[-1]


class _Piece:
    def __init__(self, device: Uploader, num_bytes: int) -> None:
        self._device, self._num_bytes = device, aligned(num_bytes)
        memory = device.step_memory(self._num_bytes)
        self._hosts = [_Host(host) for host in memory.hosts]
        self._device_memory = memory.device
        self._on_device = {key: memory.device.view(dtype) for key, dtype in _DTYPES.items()}
        self._host, self._turn, self._end = self._hosts[0], 0, 0

    def has_room(self, num_bytes: int) -> bool:
        return self._end + num_bytes <= self._num_bytes

    def begin(self) -> None:
        self._turn, self._end = (self._turn + 1) % len(self._hosts), 0
        self._host = self._hosts[self._turn]
        self._host.wait_sync(self._device)

    def put(self, values: Array, size: int, shape: tuple[int, ...], fill: int) -> Tensor:
        dtype, start = values.dtype, self._end // values.itemsize
        target = self._host.arrays[dtype][start : start + size]
        self._end = aligned(self._end + size * values.itemsize)
        if shape == values.shape:
            target[...] = values if len(shape) == 1 else values.ravel()
        else:
            target.fill(fill)
            target.reshape(shape)[tuple(map(slice, values.shape))] = values
        return self._on_device[dtype].as_strided(shape, _strides(shape), start)

    def upload(self) -> None:
        if self._end:
            self._host.is_in_use = True
            self._device.upload(self._host.memory, self._device_memory, self._end)

    def guard(self, completion: Completion) -> None:
        self._host.completion = completion

    def wait_sync(self) -> None:
        for host in self._hosts:
            host.wait_sync(self._device)


class _Host:
    """Host memory that the device may still be reading."""

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory
        self.arrays = {dtype: memory.numpy().view(dtype) for dtype in _DTYPES}
        self.is_in_use = False
        self.completion: Completion | None = None
        """Of the step that reads it; None if its launch failed."""

    def wait_sync(self, device: Uploader) -> None:
        if self.is_in_use and self.completion is None:
            device.wait_sync()
        elif self.completion is not None and not self.completion.is_done():
            self.completion.results_sync()
        self.is_in_use, self.completion = False, None


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) == 1:
        return (1,)
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


_DTYPES = {
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.bool_): torch.bool,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}
