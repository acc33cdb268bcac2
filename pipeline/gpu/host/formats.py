"""The formats that the kernels hold weights in (kernels/formats.h). Knows no torch."""

from enum import IntEnum

from gguf.constants import GGMLQuantizationType as Kind

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


BLOCK_FORMATS = {
    Kind.Q4_0: Format.Q4,
    Kind.Q4_1: Format.Q4_MIN,
    Kind.Q5_0: Format.Q5,
    Kind.Q5_1: Format.Q5_MIN,
    Kind.Q8_0: Format.Q8,
    Kind.Q4_K: Format.Q4_MIN,
    Kind.Q5_K: Format.Q5_MIN,
    Kind.Q6_K: Format.Q6,
}
"""The kinds of blocks that run as they are."""
