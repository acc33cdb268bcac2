"""A tensor as a GGUF file holds it: rows of quantised blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from gguf.constants import GGMLQuantizationType


@dataclass(frozen=True, slots=True)
class Blocks:
    """[outputs, inputs] weights, a row of blocks for every output. `dequantised` says what they mean."""

    kind: "GGMLQuantizationType"
    shape: tuple[int, ...]
    rows: npt.NDArray[np.uint8]
    """[outputs, bytes of a row], contiguous."""

    def dequantised(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows start..stop, fp32. Raises NotImplementedError for a kind that the gguf package cannot read."""
        from gguf.quants import dequantize  # a model whose weights are no blocks needs no gguf

        return torch.from_numpy(dequantize(self.rows[start:stop], self.kind))


Weight: TypeAlias = Tensor | Blocks

NO_KINDS: frozenset[str] = frozenset()
"""For those who know no blocks."""


def joined(weights: Sequence[Weight]) -> Blocks | None:
    """[outputs of all, inputs], one after another; None: not all are blocks of one kind."""
    blocks = [weight for weight in weights if isinstance(weight, Blocks)]
    if len(blocks) < len(weights) or len({each.kind for each in blocks}) > 1:
        return None
    num_outputs = sum(each.shape[0] for each in blocks)
    rows = np.concatenate([each.rows for each in blocks])
    return Blocks(blocks[0].kind, (num_outputs, *blocks[0].shape[1:]), rows)


def as_tensor(weight: Weight) -> Tensor:
    return weight.dequantised() if isinstance(weight, Blocks) else weight
