"""A model's packed weights, as the kernels' structs see them: views of one stretch of memory."""

import ctypes

import numpy as np
import numpy.typing as npt

from pipeline.gpu.host import library as abi
from pipeline.gpu.host.layout import Layout, LinearLayout

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

PANEL_DTYPE = np.dtype([("weight", np.uintp), ("format", np.int32), ("unused", np.int32)])
"""abi.Panel."""


class PackedLinear:
    """One linear: its table of panels, and its bias or None."""

    def __init__(self, layout: LinearLayout, memory: Bytes, library: abi.HostLibrary) -> None:
        self.layout = layout
        self.panels = np.zeros(sum(run.num_panels for run in layout.runs), PANEL_DTYPE)
        first = 0
        for run in layout.runs:
            size = library.panel_bytes(run.format, layout.width)
            panels = self.panels[first : (first := first + run.num_panels)]
            panels["weight"] = memory.ctypes.data + run.at + size * np.arange(run.num_panels)
            panels["format"] = run.format
        self.bias = None if layout.bias_at is None else floats(memory, layout.bias_at, layout.outputs)

    @property
    def outputs(self) -> int:
        return self.layout.outputs

    def as_struct(self) -> abi.Linear:
        """Valid while this object and the memory live."""
        return abi.Linear(
            address(self.panels), address(self.bias), self.layout.width, self.outputs, self.layout.takes_int8
        )


class PackedWeights:
    """All weights: linears by name ("3.qkv", "head", "embedding"), norms by their tensor's name.

    Args:
        memory: of the layout's size, from a cache line's start on; packing.fill writes it.
    """

    def __init__(self, layout: Layout, memory: Bytes, library: abi.HostLibrary) -> None:
        self.layout, self._memory = layout, memory
        self.linears = {
            name: PackedLinear(linear, memory, library) for name, linear in layout.linears.items()
        }
        self.norms = {name: floats(memory, vector.at, vector.size) for name, vector in layout.vectors.items()}

    @property
    def embedding(self) -> PackedLinear:
        """What a token's row is read from."""
        return self.linears.get("embedding", self.linears["head"])

    def row(self, linear: str, output: int, library: abi.HostLibrary) -> Floats:
        """The weights of one output as they are computed with, [width]."""
        packed = self.linears[linear]
        row = np.empty(packed.layout.width, np.float32)
        library.unpack(ctypes.byref(packed.as_struct()), output, row.ctypes.data)
        return row


def floats(memory: Bytes, at: int, size: int) -> Floats:
    return memory[at : at + 4 * size].view(np.float32)


def address(array: npt.NDArray[np.generic] | None) -> int | None:
    return None if array is None else array.ctypes.data
