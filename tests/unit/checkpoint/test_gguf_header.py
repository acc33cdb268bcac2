import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from pipeline.checkpoint.gguf_header import read_header
from pipeline.errors import ModelError
from tests.tiny_models import TOKENS, random_tensors, write_gguf


def test_it_agrees_with_the_gguf_package(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", kind=gguf.GGMLQuantizationType.Q8_0)
    header, reader = read_header(path), gguf.GGUFReader(path)
    assert header.metadata == {
        key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")
    }
    assert [tuple(tensor) for tensor in header.tensors.values()] == [
        (each.name, tuple(reversed(each.shape.tolist())), each.tensor_type, each.data_offset, each.n_bytes)
        for each in reader.tensors
    ]


def test_every_value_type(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values = {"uint8": 200, "int8": -3, "uint16": 40000, "int16": -40, "uint32": 1 << 31, "int32": -5}
    values |= {"uint64": 1 << 60, "int64": -(1 << 60), "float32": 0.5, "float64": 0.1}
    values |= {"bool": True, "string": "é"}
    for kind, value in values.items():
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
    writer.add_array("x.ints", [1, -2])
    writer.add_array("x.floats", [0.5, 1.5])
    writer.add_array("x.words", ["a", ""])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    expected = {f"x.{kind}": value for kind, value in values.items()}
    expected |= {"x.ints": [1, -2], "x.floats": [0.5, 1.5], "x.words": ["a", ""]}
    assert read_header(path).metadata == {"general.architecture": "llama"} | expected


def test_cut_anywhere_it_names_the_file_and_both_sizes(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [*range(4, 200, 3), *range(200, len(whole), 4999), len(whole) - 1]:
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=rf"cut.gguf is cut short: .* has {size} bytes. Delete it"):
            read_header(cut)


def test_an_empty_file_and_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ModelError, match=r"a.gguf cannot be read"):
        read_header(tmp_path / "a.gguf")
    with pytest.raises(ModelError, match=r"b.gguf does not exist"):
        read_header(tmp_path / "b.gguf")


def test_another_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"PK\x03\x04 a zip archive")
    with pytest.raises(ModelError, match=r"not a GGUF file: it begins with b'PK"):
        read_header(path)


def test_another_version_or_byte_order(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    for version in (struct.pack("<I", 9), struct.pack(">I", 3)):
        path.write_bytes(b"GGUF" + version + bytes(64))
        with pytest.raises(ModelError, match=r"GGUF version .* Convert the model again"):
            read_header(path)


def test_lengths_beyond_the_file_cost_no_memory(tmp_path: Path) -> None:
    """A count of 2^60 must end as an answer, not as an allocation."""
    path = tmp_path / "a.gguf"
    huge = struct.pack("<Q", 1 << 60)
    begin = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    key = struct.pack("<Q", 1) + b"k"
    for tail in (huge, key + struct.pack("<I", 8) + huge, key + struct.pack("<II", 9, 4) + huge):
        path.write_bytes(begin + tail + bytes(100))
        with pytest.raises(ModelError, match="cut short"):
            read_header(path)


@pytest.mark.parametrize("flipped", [b"\x63\x00\x00\x00", b"\xff\xff\xff\xff"])
def test_an_unknown_tensor_type_is_damage(tmp_path: Path, flipped: bytes) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    data = bytearray(path.read_bytes())
    name = b"output_norm.weight"
    at = data.index(name) + len(name) + 4 + 8  # one dimension, then the type
    data[at : at + 4] = flipped
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"damaged: tensor output_norm.weight has the unknown type"):
        read_header(path)


def test_the_shape_is_row_major(tmp_path: Path) -> None:
    header = read_header(write_gguf(tmp_path / "a.gguf"))
    tensor = header.tensors["token_embd.weight"]
    assert tensor.shape == (len(TOKENS), 64)
    raw = np.fromfile(header.path, np.float32, 64, offset=tensor.offset)
    np.testing.assert_array_equal(raw, random_tensors()["model.embed_tokens.weight"][0])
