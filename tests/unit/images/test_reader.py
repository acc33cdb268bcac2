"""Files are read in a process with limits: what is past them is refused, and the next one is read."""

import base64
import os
import time
from collections.abc import Iterator

import pytest

from pipeline.checkpoint.vision import Vision
from pipeline.images import ImageReader, ImageRefused
from pipeline.images import reader as reading
from tests.tiny_vision import picture

VISION = Vision("clip", 28, 14, 8, 8, 1, 1, 1e-5, "gelu", 5)
MAX_PIXELS = 2500 * 2500


@pytest.fixture(scope="module")
def reader() -> Iterator[ImageReader]:
    reader = ImageReader(VISION, MAX_PIXELS, timeout_s=5)
    yield reader
    reader.close()
    reader.close()


def text_of(file: bytes) -> str:
    return base64.b64encode(file).decode()


def test_the_same_file_has_the_same_digest(reader: ImageReader) -> None:
    first, other, again = (reader.read(text_of(picture(seed))) for seed in (1, 2, 1))
    assert first == again and first.digest != other.digest
    assert len(first.pixels) == VISION.num_bytes


@pytest.mark.parametrize("text", ["", "%%%", "aGVsbG8=", "a", "é", text_of(picture())[:-5]])
def test_what_is_no_image_is_refused(reader: ImageReader, text: str) -> None:
    with pytest.raises(ImageRefused):
        reader.read(text)


def test_too_many_pixels_are_refused(reader: ImageReader) -> None:
    with pytest.raises(ImageRefused, match="2501 x 2500 pixels; 6250000 are the most"):
        reader.read(text_of(picture(size=(2501, 2500))))


def test_the_largest_image_has_the_memory_that_it_needs(reader: ImageReader) -> None:
    for kind in ("PNG", "JPEG", "WEBP"):
        assert reader.read(text_of(picture(size=(2500, 2500), kind=kind))).pixels


def test_an_image_that_takes_too_long_is_refused_and_the_next_one_read() -> None:
    reader = ImageReader(VISION, MAX_PIXELS, timeout_s=0.05)
    reader.start()
    began_s = time.monotonic()
    with pytest.raises(ImageRefused, match=r"takes more than 0\.05 s"):
        reader.read(text_of(picture(size=(2500, 2500), kind="JPEG", progressive=True)))
    assert time.monotonic() - began_s < 5
    reader._timeout_s = 30.0
    assert reader.read(text_of(picture())).pixels
    reader.close()


def test_one_that_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_LOADED_BYTES", 8 << 20)
    monkeypatch.setattr(reading, "_COPIES", 1)
    reader = ImageReader(VISION, MAX_PIXELS, timeout_s=5)
    with pytest.raises(ImageRefused, match="memory"):
        reader.read(text_of(picture(size=(2500, 2500))))
    assert reader.read(text_of(picture())).pixels
    reader.close()


def test_a_process_that_died_is_started_again(reader: ImageReader) -> None:
    reader.start()
    pid = reader._confined.pid
    assert pid is not None
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert reader.read(text_of(picture())).pixels
