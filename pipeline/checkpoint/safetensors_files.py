"""The safetensors files of a folder: which tensor lies in which, checked before any is used.

Format: https://huggingface.co/docs/safetensors, 8 bytes of header length, JSON header, data.
"""

import struct
from pathlib import Path
from typing import Any

import msgspec

from pipeline.errors import ModelError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of the model, by name. Reads headers only."""
    return {name: shape for file in tensor_files(folder) for name, shape in _shapes(file).items()}


def tensor_files(folder: Path) -> list[Path]:
    """The safetensors files of the model, in order, each checked to be whole.

    Raises ModelError, naming the file, if one is missing, cut short or damaged, or lacks a tensor.
    """
    index = folder / INDEX
    if not index.is_file():
        single = folder / SINGLE
        if not single.is_file():
            raise ModelError(
                f"{folder} has neither {SINGLE} nor {INDEX}. Fetch the model in safetensors form."
            )
        _shapes(single)
        return [single]
    return _sharded(folder, index)


def _sharded(folder: Path, index: Path) -> list[Path]:
    try:
        weight_map = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except msgspec.DecodeError as error:
        raise ModelError(f"{index} is not a safetensors index: {error}. Fetch it again.") from error
    files = []
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name:
            raise ModelError(f"{index} names {name!r}, which is not a file beside it")
        expected = {tensor for tensor, file in weight_map.items() if file == name}
        absent = sorted(expected - _shapes(folder / name).keys())
        if absent:
            raise ModelError(
                f"{folder / name} lacks {absent[0]}, which {INDEX} says it holds. Fetch both again."
            )
        files.append(folder / name)
    return files


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    entries = _entries(file)
    end = max((entry.data_offsets[1] for entry in entries.values()), default=0)
    size = file.stat().st_size
    needed = 8 + _header_length(file) + end
    if size != needed:
        state = "is cut short" if size < needed else "is damaged"
        raise ModelError(
            f"{file} {state}: its header tells of {needed} bytes, it has {size}. Fetch it again."
        )
    return {name: entry.shape for name, entry in entries.items()}


def _entries(file: Path) -> dict[str, _Entry]:
    length = _header_length(file)
    with file.open("rb") as handle:
        handle.seek(8)
        header = handle.read(length)
    try:
        raw = msgspec.json.decode(header, type=dict[str, Any])
        raw.pop("__metadata__", None)
        return msgspec.convert(raw, dict[str, _Entry])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(
            f"{file} is damaged: its header is no safetensors header: {error}. Fetch it again."
        ) from error


def _header_length(file: Path) -> int:
    try:
        size = file.stat().st_size
        with file.open("rb") as handle:
            prefix = handle.read(8)
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}. Fetch it again.") from error
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
    if not 0 < length <= size - 8:
        raise ModelError(
            f"{file} is cut short or no safetensors file: it has {size} bytes, its header "
            f"would take {8 + length}. Fetch it again."
        )
    return int(length)
