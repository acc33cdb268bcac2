"""Vision: what must be known of a model's image encoder, and of the images that it takes."""

from typing import Literal

import msgspec

Resampling = Literal["lanczos", "bilinear", "bicubic"]


class Vision(msgspec.Struct, frozen=True):
    """A vision transformer whose patches become tokens of the decoder behind it (LLaVA, Liu et al. 2023).

    Sizes are counts of elements; those of images are in pixels.
    """

    kind: Literal["clip", "siglip"]
    image_size: int
    """S: images are [3, S, S]."""
    patch_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    """Those that run: what comes after the layer whose states count is left out."""
    num_heads: int
    norm_eps: float
    activation: Literal["quick_gelu", "gelu", "gelu_tanh"]
    image_token_id: int
    """It stands for each token of an image in a prompt."""
    projector_bias: bool = True
    drops_class: bool = True
    """Of CLIP: the state of its class token is no token of the image."""
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """Of each channel, of values from 0 to 1."""
    resize: Literal["shortest", "exact"] = "exact"
    """shortest: to `resized` on the shorter edge, then the middle is cut out; exact: to S x S."""
    resized: int = 0
    resampling: Resampling = "bicubic"

    @property
    def num_patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    @property
    def num_tokens(self) -> int:
        """Of one image in a prompt."""
        return self.num_patches + (self.kind == "clip" and not self.drops_class)

    @property
    def num_bytes(self) -> int:
        """Of one image as the encoder takes it: [3, S, S] uint8."""
        return 3 * self.image_size**2
