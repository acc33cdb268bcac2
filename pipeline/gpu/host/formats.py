"""The formats that the kernels hold weights in (kernels/formats.h). Knows no torch."""

from collections.abc import Mapping
from enum import IntEnum

GROUP = 32
"""isa.h: widths are multiples of it."""
LANES, PANEL = 16, 32


class Format(IntEnum):
    """formats.h."""

    BF16 = 0
    INT8 = 1
    Q8 = 2
    Q6 = 3
    Q5 = 4
    Q5_MIN = 5
    Q4 = 6
    Q4_MIN = 7


class _Kind(IntEnum):
    """ggml_type, of what runs as it is; gguf.constants has them all, under the same names."""

    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14


BLOCK_FORMATS: Mapping[int, Format] = {
    _Kind.Q4_0: Format.Q4,
    _Kind.Q4_1: Format.Q4_MIN,
    _Kind.Q5_0: Format.Q5,
    _Kind.Q5_1: Format.Q5_MIN,
    _Kind.Q8_0: Format.Q8,
    _Kind.Q4_K: Format.Q4_MIN,
    _Kind.Q5_K: Format.Q5_MIN,
    _Kind.Q6_K: Format.Q6,
}
"""The kinds of blocks that run as they are: gguf.constants.GGMLQuantizationType."""
