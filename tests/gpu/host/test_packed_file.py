"""Packed weights on disk: what a second start reads, and what it does with a file that is not whole."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from pipeline.checkpoint.model import describe
from pipeline.errors import ConfigError
from pipeline.gpu.host import packed_file
from pipeline.gpu.host.build import Build, find_compiler
from pipeline.gpu.host.layout import Choice
from pipeline.gpu.host.library import HostLibrary, load_library
from pipeline.gpu.host.packed_file import make_room
from pipeline.gpu.host.provision import provide_weights
from pipeline.gpu.host.weights import PackedWeights
from pipeline.gpu.models.llama import LLAMA
from pipeline.gpu.weights.blocks import Weight
from pipeline.gpu.weights.source import GivenWeights
from tests.gpu.driver import TINY, random_tensors
from tests.tiny_models import write_gguf


class Counted(GivenWeights):
    """Random weights that are said to be of a file, and count how often they are read."""

    identity: str | None = "a file"

    def __init__(self) -> None:
        super().__init__(random_tensors(TINY))
        self.reads = 0

    def __iter__(self) -> Iterator[tuple[str, Weight]]:
        self.reads += 1
        return super().__iter__()


@pytest.fixture(scope="module")
def native() -> HostLibrary:
    assert torch.get_num_threads()
    return load_library(Build(find_compiler()))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "stageline" / "host"


def provide(weights: GivenWeights, library: HostLibrary, choice: Choice = "int8") -> PackedWeights:
    return provide_weights(weights, TINY, LLAMA.shapes(TINY), choice, library, 2)


def values(packed: PackedWeights, library: HostLibrary) -> list[np.ndarray]:
    rows = [packed.row(name, 3, library) for name in packed.linears]
    return [*rows, *packed.norms.values()]


def only_file(folder: Path) -> Path:
    (file,) = folder.glob("*.weights")
    return file


def test_the_second_start_maps_what_the_first_packed(folder: Path, native: HostLibrary) -> None:
    weights = Counted()
    first = values(provide(weights, native), native)
    second = provide(weights, native)
    assert weights.reads == 1
    for a, b in zip(first, values(second, native), strict=True):
        assert np.array_equal(a, b)
    assert stat.S_IMODE(only_file(folder).stat().st_mode) == 0o600
    with pytest.raises(ValueError, match="read-only"):
        next(iter(second.norms.values()))[0] = 1


def test_another_choice_or_file_is_packed_anew(folder: Path, native: HostLibrary) -> None:
    weights = Counted()
    provide(weights, native)
    provide(weights, native, "bf16")
    weights.identity = "another file"
    provide(weights, native)
    assert weights.reads == 3
    assert len(list(folder.glob("*.weights"))) == 3


def test_weights_that_are_of_no_file_are_not_kept(folder: Path, native: HostLibrary) -> None:
    weights = Counted()
    weights.identity = None
    provide(weights, native)
    assert not list(folder.glob("*.weights"))


@pytest.mark.parametrize("where", ["start", "end", "footer", "empty", "foreign"])
def test_a_file_that_is_not_whole_is_replaced(folder: Path, native: HostLibrary, where: str) -> None:
    weights = Counted()
    expected = values(provide(weights, native), native)
    file = only_file(folder)
    good = file.read_bytes()
    bad = bytearray(good)
    match where:
        case "start":
            bad[100] ^= 1
        case "end":
            del bad[-1000:]
        case "footer":
            bad[-30] ^= 1
        case "empty":
            bad.clear()
        case "foreign":
            bad[:] = b"x" * 5000
    file.write_bytes(bad)
    with capture_logs() as lines:
        found = values(provide(weights, native), native)
    assert any("cannot be used" in line["event"] for line in lines)
    assert weights.reads == 2
    assert file.read_bytes() == good
    for a, b in zip(expected, found, strict=True):
        assert np.array_equal(a, b)


def test_a_cache_that_cannot_be_written_is_said_and_no_more(folder: Path, native: HostLibrary) -> None:
    folder.parent.write_text("a file where the folder would be")
    with capture_logs() as lines:
        provide(Counted(), native)
    assert any("cannot be kept" in line["event"] for line in lines)


def test_what_was_used_longest_ago_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_file, "MAX_BYTES", 350)
    for age, name in enumerate(("packed-new", "packed-middle", "packed-old", "packing-left")):
        file = tmp_path / f"{name}.weights"
        file.write_bytes(bytes(100))
        os.utime(file, (1e9 - age, 1e9 - age))
    (tmp_path / "kernels-1.so").write_bytes(bytes(1000))
    make_room(tmp_path, 100)
    assert {file.name for file in tmp_path.iterdir()} == {
        "packed-new.weights",
        "packed-middle.weights",
        "kernels-1.so",
    }


def test_int4_needs_blocks(folder: Path, native: HostLibrary) -> None:
    with pytest.raises(ConfigError, match="this model has none"):
        provide(Counted(), native, "int4")


def test_the_identity_is_of_the_file(tmp_path: Path) -> None:
    from pipeline.gpu.weights.load import FileWeights

    path = write_gguf(tmp_path / "a.gguf")
    card = describe(path, "a")
    before = FileWeights(card).identity
    assert FileWeights(card).identity == before
    os.utime(path, (1, 1))
    assert FileWeights(card).identity != before
