"""The files that hold a model's weights, without reading one."""

from pathlib import Path

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.safetensors_files import tensor_files


def weights_id(card: ModelCard) -> str:
    """Of the files that hold the weights, as they are now: another text for others, without reading them."""
    stats = [(file.name, file.stat()) for file in sorted(_files(card))]
    return "\n".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats)


def size_bytes(card: ModelCard) -> int:
    """Bytes of the files that hold the weights."""
    return sum(file.stat().st_size for file in _files(card))


def _files(card: ModelCard) -> list[Path]:
    return [card.path] if card.format == "gguf" else tensor_files(card.path)
