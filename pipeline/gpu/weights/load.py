"""The tensors of a model on disk, one at a time, under their Hugging Face names."""

from collections.abc import Iterator

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from safetensors import SafetensorError, safe_open

from pipeline.checkpoint.card import Architecture, ModelCard
from pipeline.checkpoint.gguf_config import ROPE_FACTORS
from pipeline.checkpoint.gguf_header import GgufTensor, read_header
from pipeline.checkpoint.safetensors_files import tensor_files
from pipeline.errors import ModelError
from pipeline.gpu.weights.blocks import Blocks, Weight
from pipeline.gpu.weights.source import tensors_of
from pipeline.gpu.weights.tensor_names import as_multiplied, of_folder, of_gguf

LM_HEAD = "lm_head.weight"

_DIRECT = {GGMLQuantizationType.F32: torch.float32, GGMLQuantizationType.F16: torch.float16}
_DIRECT[GGMLQuantizationType.BF16] = torch.bfloat16


class FileWeights:
    """Those of a model on disk. Implements WeightSource.

    Safetensors keep their dtype and are mapped, not copied; GGUF gives F32, F16 and BF16 as tensors and every
    other type as blocks. Rotary rows are in the half-split order of Hugging Face. A head that is tied to the
    embeddings is not given. Peak memory is about twice the largest tensor if the caller keeps none. Raises
    ModelError for a file that is damaged or a type that cannot be dequantised.
    """

    def __init__(self, card: ModelCard) -> None:
        self._card = card

    @property
    def identity(self) -> str | None:
        files = [self._card.path] if self._card.format == "gguf" else tensor_files(self._card.path)
        facts = [(file.resolve(), file.stat()) for file in files]
        return "\n".join(f"{path} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}" for path, stat in facts)

    def kinds(self) -> dict[str, GGMLQuantizationType]:
        if self._card.format != "gguf":
            return {}
        return {
            _hugging_face_name(self._card, tensor.name): tensor.kind
            for tensor in read_header(self._card.path).tensors.values()
            if tensor.kind not in _DIRECT and tensor.name != ROPE_FACTORS
        }

    def __iter__(self) -> Iterator[tuple[str, Weight]]:
        card = self._card
        weights = _load_gguf(card) if card.format == "gguf" else _load_safetensors(card)
        for name, weight in weights:
            if not (name == LM_HEAD and card.architecture.tie_embeddings):
                yield name, weight


def load_tensors(card: ModelCard) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight of the model as (name, CPU tensor): model.layers.0.self_attn.q_proj.weight, ...; see
    FileWeights. What is quantised becomes float32.
    """
    return tensors_of(FileWeights(card))


def _load_safetensors(card: ModelCard) -> Iterator[tuple[str, torch.Tensor]]:
    family = card.architecture.family
    for path in tensor_files(card.path):
        try:
            with safe_open(path, framework="pt") as file:
                for published in file.keys():  # noqa: SIM118 - safe_open is no mapping
                    if (name := of_folder(family, published)) is not None:
                        yield name, as_multiplied(family, name, file.get_tensor(published))
        except SafetensorError as error:
            raise ModelError(f"{path} is damaged: {error}. Fetch it again.") from error


def _load_gguf(card: ModelCard) -> Iterator[tuple[str, Weight]]:
    for tensor in read_header(card.path).tensors.values():
        if tensor.name != ROPE_FACTORS:  # part of the card
            yield _hugging_face_name(card, tensor.name), _read(card, tensor)


def _hugging_face_name(card: ModelCard, name: str) -> str:
    found = of_gguf(card.architecture.family, name)
    if found is not None:
        return found
    raise ModelError(f"{card.path} has the tensor {name}, which no model served here knows")


def _read(card: ModelCard, tensor: GgufTensor) -> Weight:
    raw = np.fromfile(card.path, np.uint8, tensor.num_bytes, offset=tensor.offset)
    heads = _rotary_heads(card.architecture, tensor.name)
    if tensor.kind in _DIRECT:
        weight = torch.from_numpy(raw).view(_DIRECT[tensor.kind]).reshape(tensor.shape)
        return weight if heads is None else _half_split(weight, heads)
    rows = torch.from_numpy(raw).reshape(*tensor.shape[:-1], -1)
    if heads is not None:
        rows = _half_split(rows, heads).contiguous()
    blocks = Blocks(tensor.kind, tensor.shape, rows.numpy())
    _check_kind(card, tensor, blocks)
    return blocks


def _check_kind(card: ModelCard, tensor: GgufTensor, blocks: Blocks) -> None:
    try:
        blocks.dequantised(0, 1)
    except NotImplementedError as error:
        raise ModelError(
            f"{card.path}: tensor {tensor.name} is of type {tensor.kind.name}, which cannot be dequantised. "
            "Use another quantisation of the model."
        ) from error


def _rotary_heads(architecture: Architecture, name: str) -> int | None:
    """How many heads' rows llama.cpp has reordered in this tensor; it does so for its "llama" only."""
    if architecture.family != "llama":
        return None
    part = name.split(".")[-2]
    return {"attn_q": architecture.num_heads, "attn_k": architecture.num_kv_heads}.get(part)


def _half_split(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows [H * D, ...]: of each head, from pairs (0, D/2, 1, D/2 + 1, ...) back to halves (0, 1, ...)."""
    pairs = weight.reshape(num_heads, -1, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)
