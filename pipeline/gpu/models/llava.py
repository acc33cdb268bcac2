"""LLaVA: a vision transformer (CLIP's or SigLIP's) and two layers before a decoder of the Llama family.

The tower is plain torch: it runs once for an image, so its kernels are not where time goes. One image at a
time, so that its states do not depend on who else is in the step (docs/decisions/0002).

Letters: P patches (of CLIP, and a class token), W width of the tower, n tokens of an image, C hidden size.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.checkpoint.card import Architecture
from pipeline.checkpoint.vision import Vision
from pipeline.gpu.api import Family, LayerKv, Model, Ops, StepInputs
from pipeline.gpu.models.llama import LLAMA
from pipeline.gpu.weights.blocks import Weight, as_tensor
from pipeline.gpu.weights.tensors import Shapes, TensorBag, collect

TOWER, PROJECTOR = "vision_tower.", "multi_modal_projector."
_UNUSED = tuple(TOWER + each for each in ("post_layernorm.", "head.", "embeddings.position_ids"))
"""What files have beside: for the tower's own ends, or derived."""
_LAYER = re.compile(re.escape(TOWER) + r"encoder\.layers\.(\d+)\.")

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


@dataclass(frozen=True, slots=True)
class Affine:
    """Weight and bias of a product or a norm."""

    weight: Tensor
    bias: Tensor | None

    def product(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def norm(self, x: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, eps)


@dataclass(frozen=True, slots=True)
class Block:
    """One layer of the tower: norm before attention and before its feed-forward."""

    attention_norm: Affine
    q: Affine
    k: Affine
    v: Affine
    output: Affine
    mlp_norm: Affine
    up: Affine
    down: Affine


class Tower:
    """[3, S, S] uint8 -> [n, C]: an image as the tokens of the decoder."""

    def __init__(self, vision: Vision, bag: TensorBag, dtype: torch.dtype, device: torch.device) -> None:
        self._vision = vision
        self._dtype = dtype
        self._activation = _ACTIVATIONS[vision.activation]
        self._mean = torch.tensor(vision.mean, device=device).view(3, 1, 1)
        self._std = torch.tensor(vision.std, device=device).view(3, 1, 1)
        patch = f"{TOWER}embeddings.patch_embedding"
        self._patch = _affine(bag, patch)
        self._positions = bag.take(f"{TOWER}embeddings.position_embedding.weight")
        is_clip = vision.kind == "clip"
        self._class = bag.take(f"{TOWER}embeddings.class_embedding") if is_clip else None
        self._first_norm = _affine(bag, f"{TOWER}pre_layrnorm") if is_clip else None
        self._blocks = [_block(bag, f"{TOWER}encoder.layers.{i}.") for i in range(vision.num_layers)]
        self._projector = [_affine(bag, f"{PROJECTOR}linear_{i}") for i in (1, 2)]

    def __call__(self, pixels: Tensor) -> Tensor:
        x = self._patches(((pixels.float() / 255 - self._mean) / self._std).to(self._dtype))
        for block in self._blocks:
            x = self._run(block, x)
        if self._class is not None and self._vision.drops_class:
            x = x[1:]
        first, second = self._projector
        return second.product(F.gelu(first.product(x)))

    def _patches(self, image: Tensor) -> Tensor:
        """[3, S, S] -> [P, W]."""
        size = self._vision.patch_size
        x = F.conv2d(image[None], self._patch.weight, self._patch.bias, stride=size)[0].flatten(1).T
        if self._class is not None:
            x = torch.cat((self._class[None], x))
        x = x + self._positions
        return x if self._first_norm is None else self._first_norm.norm(x, self._vision.norm_eps)

    def _run(self, block: Block, x: Tensor) -> Tensor:
        """[P, W] -> [P, W]."""
        eps = self._vision.norm_eps
        normed = block.attention_norm.norm(x, eps)
        q, k, v = (self._heads(each.product(normed)) for each in (block.q, block.k, block.v))
        seen = F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).flatten(1)
        x = x + block.output.product(seen)
        return x + block.down.product(self._activation(block.up.product(block.mlp_norm.norm(x, eps))))

    def _heads(self, x: Tensor) -> Tensor:
        """[P, W] -> [1, heads, P, W / heads]."""
        return x.view(x.shape[0], self._vision.num_heads, -1).transpose(0, 1)[None]


class Llava:
    """Implements gpu.api.Model and gpu.api.Sees."""

    def __init__(self, decoder: Model, tower: Tower) -> None:
        self._decoder = decoder
        self._tower = tower

    def forward(self, inputs: StepInputs, layers: list[LayerKv]) -> Tensor:
        return self._decoder.forward(inputs, layers)

    def see(self, pixels: Tensor) -> Tensor:
        return self._tower(pixels)


def _vision(architecture: Architecture) -> Vision:
    assert architecture.vision is not None, "a card of this family has its image side"
    return architecture.vision


def _shapes(architecture: Architecture) -> Shapes:
    return LLAMA.shapes(architecture) | _tower_shapes(_vision(architecture), architecture.hidden_size)


def _tower_shapes(vision: Vision, hidden_size: int) -> Shapes:
    width, inner, size, is_clip = (
        vision.hidden_size,
        vision.intermediate_size,
        vision.patch_size,
        vision.kind == "clip",
    )
    embeddings = f"{TOWER}embeddings."
    shapes: Shapes = {
        f"{embeddings}patch_embedding.weight": (width, 3, size, size),
        f"{embeddings}position_embedding.weight": (vision.num_patches + is_clip, width),
    }
    if is_clip:
        shapes |= {f"{embeddings}class_embedding": (width,)} | _norm(f"{TOWER}pre_layrnorm", width)
    else:
        shapes[f"{embeddings}patch_embedding.bias"] = (width,)
    for i in range(vision.num_layers):
        layer = f"{TOWER}encoder.layers.{i}."
        shapes |= _norm(f"{layer}layer_norm1", width) | _norm(f"{layer}layer_norm2", width)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= _linear(f"{layer}self_attn.{name}", width, width)
        shapes |= _linear(f"{layer}mlp.fc1", inner, width) | _linear(f"{layer}mlp.fc2", width, inner)
    has_bias = vision.projector_bias
    shapes |= _linear(f"{PROJECTOR}linear_1", hidden_size, width, has_bias=has_bias)
    return shapes | _linear(f"{PROJECTOR}linear_2", hidden_size, hidden_size, has_bias=has_bias)


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _linear(name: str, num_out: int, num_in: int, *, has_bias: bool = True) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (num_out, num_in)}
    return shapes | ({f"{name}.bias": (num_out,)} if has_bias else {})


def _load(
    architecture: Architecture,
    weights: Iterable[tuple[str, Weight]],
    ops: Ops,
    dtype: torch.dtype,
    device: torch.device,
) -> Model:
    vision, seeing = _vision(architecture), dict[str, Tensor]()
    decoder = LLAMA.load(architecture, _without_tower(weights, seeing), ops, dtype, device)
    shapes = _tower_shapes(vision, architecture.hidden_size)
    used = [(name, tensor) for name, tensor in seeing.items() if _is_used(name, vision)]
    bag = collect(used, shapes, dtype, device)
    return Llava(decoder, Tower(vision, bag, dtype, device))


def _without_tower(
    weights: Iterable[tuple[str, Weight]], seeing: dict[str, Tensor]
) -> Iterator[tuple[str, Weight]]:
    """The decoder's; the others go to `seeing`."""
    for name, weight in weights:
        if name.startswith((TOWER, PROJECTOR)):
            seeing[name] = as_tensor(weight)
        else:
            yield name, weight


def _is_used(name: str, vision: Vision) -> bool:
    layer = _LAYER.match(name)
    return not name.startswith(_UNUSED) if layer is None else int(layer[1]) < vision.num_layers


def _affine(bag: TensorBag, name: str) -> Affine:
    bias = f"{name}.bias"
    return Affine(bag.take(f"{name}.weight"), bag.take(bias) if bias in bag else None)


def _block(bag: TensorBag, prefix: str) -> Block:
    return Block(
        attention_norm=_affine(bag, f"{prefix}layer_norm1"),
        q=_affine(bag, f"{prefix}self_attn.q_proj"),
        k=_affine(bag, f"{prefix}self_attn.k_proj"),
        v=_affine(bag, f"{prefix}self_attn.v_proj"),
        output=_affine(bag, f"{prefix}self_attn.out_proj"),
        mlp_norm=_affine(bag, f"{prefix}layer_norm2"),
        up=_affine(bag, f"{prefix}mlp.fc1"),
        down=_affine(bag, f"{prefix}mlp.fc2"),
    )


FAMILIES: dict[str, Family] = {"llava": Family(_shapes, _load)}
