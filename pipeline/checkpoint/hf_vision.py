"""The image side of a LLaVA in Hugging Face layout -> Vision: config.json and preprocessor_config.json."""

from pathlib import Path
from typing import Literal

import msgspec

from pipeline.checkpoint.json_file import read_json
from pipeline.checkpoint.vision import Resampling, Vision
from pipeline.errors import ModelError

_ACTIVATIONS: dict[str, Literal["quick_gelu", "gelu", "gelu_tanh"]] = {
    "quick_gelu": "quick_gelu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_RESAMPLINGS: dict[int, Resampling] = {1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""By Pillow's number."""
_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


class _Tower(msgspec.Struct, frozen=True):
    """vision_config; defaults are those of transformers' CLIPVisionConfig."""

    model_type: Literal["clip_vision_model", "siglip_vision_model"]
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_channels: int = 3
    image_size: int = 224
    patch_size: int = 32
    hidden_act: str | None = None
    layer_norm_eps: float | None = None


class LlavaConfig(msgspec.Struct, frozen=True):
    """What a LLaVA's config.json says beside its text_config; defaults are transformers'."""

    vision_config: _Tower
    image_token_index: int | None = None
    image_token_id: int | None = None
    vision_feature_layer: int = -2
    vision_feature_select_strategy: Literal["default", "full"] = "default"
    projector_hidden_act: str = "gelu"
    multimodal_projector_bias: bool = True


class _Side(msgspec.Struct, frozen=True):
    shortest_edge: int | None = None
    height: int | None = None
    width: int | None = None

    @property
    def square(self) -> int | None:
        return self.height if self.height == self.width else None


class _Processor(msgspec.Struct, frozen=True):
    """preprocessor_config.json."""

    size: _Side | int = 224
    crop_size: _Side | int | None = None
    resample: int = 3
    do_resize: bool = True
    do_center_crop: bool = False
    do_rescale: bool = True
    do_normalize: bool = True
    do_pad: bool = False
    rescale_factor: float = 1 / 255
    image_mean: tuple[float, float, float] = _CLIP_MEAN
    image_std: tuple[float, float, float] = _CLIP_STD


class _Processors(msgspec.Struct, frozen=True):
    """processor_config.json, the newer place."""

    image_processor: _Processor | None = None


def vision_of(folder: Path, config: LlavaConfig) -> Vision:
    """Raises ModelError for what cannot be served."""
    tower, file = config.vision_config, folder / "config.json"
    is_clip = tower.model_type == "clip_vision_model"
    activation = tower.hidden_act or ("quick_gelu" if is_clip else "gelu_pytorch_tanh")
    layer = config.vision_feature_layer
    num_layers = layer if layer >= 0 else tower.num_hidden_layers + 1 + layer
    token_id = config.image_token_index if config.image_token_index is not None else config.image_token_id
    _refuse(
        file,
        {
            "no image_token_index": token_id is None,
            f"vision_config.hidden_act {activation!r}": activation not in _ACTIVATIONS,
            f"projector_hidden_act {config.projector_hidden_act!r}": config.projector_hidden_act != "gelu",
            f"vision_feature_layer {layer}": not 1 <= num_layers < tower.num_hidden_layers + is_clip,
            "images that are not of 3 channels": tower.num_channels != 3,
            "an image_size that is no multiple of patch_size": tower.image_size % tower.patch_size != 0,
            'the class token of a tower that has none (vision_feature_select_strategy "default")': not is_clip
            and config.vision_feature_select_strategy == "default",
        },
    )
    vision = Vision(
        kind="clip" if is_clip else "siglip",
        image_size=tower.image_size,
        patch_size=tower.patch_size,
        hidden_size=tower.hidden_size,
        intermediate_size=tower.intermediate_size,
        num_layers=num_layers,
        num_heads=tower.num_attention_heads,
        norm_eps=tower.layer_norm_eps or (1e-5 if is_clip else 1e-6),
        activation=_ACTIVATIONS[activation],
        image_token_id=token_id or 0,
        projector_bias=config.multimodal_projector_bias,
        drops_class=config.vision_feature_select_strategy == "default",
    )
    return _with_processor(folder, vision)


def _with_processor(folder: Path, vision: Vision) -> Vision:
    """How images are made to fit."""
    file = folder / "preprocessor_config.json"
    processor: _Processor | None = None
    if file.is_file():
        processor = read_json(file, _Processor)
    elif (newer := folder / "processor_config.json").is_file():
        file, processor = newer, read_json(newer, _Processors).image_processor
    if processor is None:
        raise ModelError(f"{file} does not exist: it says how images are made to fit the encoder")
    size = processor.size if isinstance(processor.size, _Side) else _Side(shortest_edge=processor.size)
    crop = processor.crop_size
    cut = crop.square if isinstance(crop, _Side) else crop
    is_shortest = size.shortest_edge is not None
    _refuse(
        file,
        {
            "images that are not resized, rescaled and normalised": not (
                processor.do_resize and processor.do_rescale and processor.do_normalize
            ),
            f"resample = {processor.resample}": processor.resample not in _RESAMPLINGS,
            "images that are padded": processor.do_pad,
            f"rescale_factor = {processor.rescale_factor}": abs(processor.rescale_factor * 255 - 1) > 1e-6,
            f"images that do not become {vision.image_size} x {vision.image_size}": (
                (cut if processor.do_center_crop else None) if is_shortest else size.square
            )
            != vision.image_size,
            "images resized to less than is cut out of them": is_shortest
            and (size.shortest_edge or 0) < vision.image_size,
        },
    )
    return msgspec.structs.replace(
        vision,
        mean=processor.image_mean,
        std=processor.image_std,
        resize="shortest" if is_shortest else "exact",
        resized=size.shortest_edge or vision.image_size,
        resampling=_RESAMPLINGS[processor.resample],
    )


def _refuse(file: Path, faults: dict[str, bool]) -> None:
    for fault, is_present in faults.items():
        if is_present:
            raise ModelError(f"{file}: a model with {fault} cannot be served")
