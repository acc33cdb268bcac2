"""Where a model's weights come from, whatever they lie in."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from pipeline.gpu.weights.blocks import Weight, as_tensor

if TYPE_CHECKING:
    from gguf.constants import GGMLQuantizationType


@runtime_checkable
class WeightSource(Protocol):
    """A model's weights, read when they are iterated over: (Hugging Face name, weight), each once."""

    @property
    def identity(self) -> str | None:
        """Changes when a weight may have; None: what is made of them is not to be kept."""
        ...

    def kinds(self) -> "dict[str, GGMLQuantizationType]":
        """Of the weights that are quantised blocks."""
        ...

    def __iter__(self) -> Iterator[tuple[str, Weight]]: ...


def as_source(weights: Iterable[tuple[str, Weight]]) -> WeightSource:
    return weights if isinstance(weights, WeightSource) else GivenWeights(weights)


class GivenWeights:
    """Weights that the caller has. Implements WeightSource."""

    identity = None

    def __init__(self, weights: Iterable[tuple[str, Weight]]) -> None:
        self._weights = weights

    def kinds(self) -> "dict[str, GGMLQuantizationType]":
        return {}

    def __iter__(self) -> Iterator[tuple[str, Weight]]:
        return iter(self._weights)


def tensors_of(weights: WeightSource) -> Iterator[tuple[str, Tensor]]:
    for name, weight in weights:
        yield name, as_tensor(weight)
