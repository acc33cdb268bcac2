"""From a reference to a card: the two calls the rest of the server makes."""

import math
from pathlib import Path

from msgspec.structs import replace

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.folder import describe_folder
from pipeline.checkpoint.gguf_file import describe_gguf
from pipeline.checkpoint.gguf_header import read_header
from pipeline.checkpoint.reference import HubRepo, parse
from pipeline.checkpoint.safetensors_files import tensor_shapes
from pipeline.checkpoint.store import fetch


def load_card(reference: str) -> ModelCard:
    """Find the model, fetching it if need be, and describe it. Raises ModelError."""
    source = parse(reference)
    name = source.repo.rpartition("/")[2] if isinstance(source, HubRepo) else None
    return describe(fetch(source), reference, name)


def describe(path: Path, reference: str, name: str | None = None) -> ModelCard:
    """The card of the model at `path`, a .gguf file or a folder. Reads no weight. Raises ModelError."""
    return describe_gguf(path, reference, name) if path.is_file() else describe_folder(path, reference, name)


def rename(card: ModelCard, name: str) -> ModelCard:
    """The same model under the name that clients are to call it by."""
    return replace(card, name=name)


def num_parameters(card: ModelCard) -> int:
    """Elements of all tensors on disk; tied embeddings count once."""
    if card.format == "gguf":
        return sum(math.prod(tensor.shape) for tensor in read_header(card.path).tensors.values())
    return sum(math.prod(shape) for shape in tensor_shapes(card.path).values())
