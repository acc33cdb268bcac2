"""Named weights on their way from a file into a model, checked against what the model expects."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from pipeline.errors import ModelError
from pipeline.gpu.weights.blocks import Blocks, Weight, as_tensor, joined

Shapes: TypeAlias = dict[str, tuple[int, ...]]

Shaped = TypeVar("Shaped", bound="HasShape")

MAX_NAMED = 5
"""How many names an error lists."""


class HasShape(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


class TensorBag:
    """Weights for one dtype on one device. Each is taken once, so its memory goes when the taker drops it."""

    def __init__(self, weights: dict[str, Weight], dtype: torch.dtype, device: torch.device) -> None:
        self._weights = weights
        self._dtype = dtype
        self._device = device

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def take(self, name: str) -> Tensor:
        return self._as_tensor(self._weights.pop(name))

    def take_product(self, names: Sequence[str]) -> Weight:
        """[outputs of all, inputs]: one weight for several, one after another. Blocks where all are, of one
        kind."""
        weights = [self._weights.pop(name) for name in names]
        whole = joined(weights)
        return torch.cat([self._as_tensor(weight) for weight in weights]) if whole is None else whole

    def _as_tensor(self, weight: Weight) -> Tensor:
        """A tensor is as it is to be already."""
        if isinstance(weight, Blocks):
            return weight.dequantised().to(device=self._device, dtype=self._dtype)
        return weight


def collect(
    weights: Iterable[tuple[str, Weight]],
    expected: Shapes,
    dtype: torch.dtype,
    device: torch.device,
    wide: str | None = None,
    block_kinds: Collection[str] = (),
) -> TensorBag:
    """Take in exactly the expected weights; names that end in `wide` become fp32. Raises ModelError.

    Args:
        block_kinds: of which blocks stay as they are; others become tensors.
    """

    def dtype_of(name: str) -> torch.dtype:
        return torch.float32 if wide and name.endswith(wide) else dtype

    def taken(name: str, weight: Weight) -> Weight:
        if isinstance(weight, Blocks) and weight.kind.name in block_kinds:
            return weight
        return as_tensor(weight).to(device=device, dtype=dtype_of(name)).contiguous()

    found = {name: taken(name, weight) for name, weight in checked(weights, expected)}
    return TensorBag(found, dtype, device)


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
