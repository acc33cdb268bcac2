"""Named tensors on their way from a file into a model, checked against what the model expects."""

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from pipeline.errors import ModelError

Shapes: TypeAlias = dict[str, tuple[int, ...]]

Shaped = TypeVar("Shaped", bound="HasShape")

MAX_NAMED = 5
"""How many names an error lists."""


class HasShape(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


class TensorBag:
    """Tensors of one dtype on one device. Each is taken once, so its memory goes when the taker drops it."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str) -> Tensor:
        return self._tensors.pop(name)


def collect(
    tensors: Iterable[tuple[str, Tensor]],
    expected: Shapes,
    dtype: torch.dtype,
    device: torch.device,
    wide: str | None = None,
) -> TensorBag:
    """Take in exactly the expected tensors; names that end in `wide` become fp32. Raises ModelError."""

    def dtype_of(name: str) -> torch.dtype:
        return torch.float32 if wide and name.endswith(wide) else dtype

    return TensorBag(
        {
            name: tensor.to(device=device, dtype=dtype_of(name)).contiguous()
            for name, tensor in checked(tensors, expected)
        }
    )


def checked(tensors: Iterable[tuple[str, Shaped]], expected: Shapes) -> Iterator[tuple[str, Shaped]]:
    """Pass on exactly the expected tensors, in the order they come. Raises ModelError, for those that are
    missing or unexpected once all have come.
    """
    found: set[str] = set()
    unexpected = []
    for name, tensor in tensors:
        if name in expected:
            _check_shape(name, tuple(tensor.shape), expected[name])
            found.add(name)
            yield name, tensor
        else:
            unexpected.append(name)
    if unexpected:
        raise ModelError(f"the model file has tensors that this architecture has not: {_listed(unexpected)}")
    if missing := [name for name in expected if name not in found]:
        raise ModelError(f"the model file lacks tensors: {_listed(missing)}; is it complete?")


def _check_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise ModelError(
            f"tensor {name} has shape {list(shape)}, the model's configuration implies {list(expected)}"
        )


def _listed(names: list[str]) -> str:
    rest = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
