"""Rows of a GGUF's blocks with random quants, for tests. Knows no torch."""

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Kind

Bytes = npt.NDArray[np.uint8]

HALVES_AT = {
    Kind.Q4_0: (0,),
    Kind.Q4_1: (0, 2),
    Kind.Q5_0: (0,),
    Kind.Q5_1: (0, 2),
    Kind.Q8_0: (0,),
    Kind.Q4_K: (0, 2),
    Kind.Q5_K: (0, 2),
    Kind.Q6_K: (208,),
}
"""Where a block has its fp16 scale, and its minimum if there is one."""
KINDS = tuple(HALVES_AT)
K_KINDS = (Kind.Q4_K, Kind.Q5_K, Kind.Q6_K)


def random_rows(
    kind: Kind, outputs: int, num_blocks: int, seed: int, scales: npt.NDArray[np.float16] | None = None
) -> tuple[Bytes, int]:
    """[outputs, bytes of a row], and how many inputs that is. Scales are out of the given ones, or normal."""
    rng = np.random.default_rng(seed)
    inputs, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (outputs, num_blocks, size), np.uint8)
    for at in HALVES_AT[kind]:
        halves = rng.normal(size=blocks.shape[:2]).astype(np.float16) if scales is None else scales
        if scales is not None:
            halves = rng.choice(scales, blocks.shape[:2])
        blocks[:, :, at : at + 2] = halves[:, :, None].view(np.uint8)
    return blocks.reshape(outputs, -1), num_blocks * inputs
