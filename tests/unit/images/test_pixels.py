"""Files become the pixels that transformers' processors make; bombs and damage are faults, soon."""

import struct
import time
import zlib
from contextlib import nullcontext, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from PIL import Image

from pipeline.checkpoint.hf_config import architecture_of, read_config
from pipeline.checkpoint.vision import Vision
from pipeline.images.header import ImageFault
from pipeline.images.pixels import pixels_of
from tests import tiny_vision
from tests.tiny_vision import PROCESSOR, picture

MAX_PIXELS = 1 << 20
SIZES = [(60, 40), (40, 60), (28, 28), (29, 57), (300, 31), (7, 90)]
PROCESSORS: dict[str, dict[str, Any]] = {
    "clip": PROCESSOR,
    "more than is cut out": PROCESSOR | {"size": {"shortest_edge": 33}},
    "exact": PROCESSOR | {"size": {"height": 28, "width": 28}, "do_center_crop": False, "resample": 2},
}


def vision_of(folder: Path, processor: dict[str, Any]) -> Vision:
    tiny_vision.write_json(folder / "config.json", tiny_vision.CONFIG)
    tiny_vision.write_json(folder / "preprocessor_config.json", processor)
    vision = architecture_of(folder / "config.json", read_config(folder / "config.json")).vision
    assert vision is not None
    return vision


@pytest.fixture
def vision(tmp_path: Path) -> Vision:
    return vision_of(tmp_path, PROCESSOR)


def array(pixels: bytes) -> np.ndarray:
    return np.frombuffer(pixels, np.uint8).reshape(3, 28, 28)


@pytest.mark.parametrize("name", PROCESSORS)
def test_pixels_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    vision = vision_of(tmp_path, PROCESSORS[name])
    fields = {key: value for key, value in PROCESSORS[name].items() if key != "image_processor_type"}
    judge = CLIPImageProcessorPil(**fields)
    for seed, size in enumerate(SIZES):
        file = picture(seed, size)
        with Image.open(BytesIO(file)) as image:
            expected = judge(image, return_tensors="np")["pixel_values"][0]
        mean, std = (np.array(each, np.float32).reshape(3, 1, 1) for each in (vision.mean, vision.std))
        found = (array(pixels_of(file, vision, MAX_PIXELS)) / np.float32(255) - mean) / std
        assert np.abs(found - expected).max() < 1e-5, size


def test_a_thread_of_pixels_is_its_middle(vision: Vision) -> None:
    image = Image.new("L", (50_001, 1), 9)
    image.paste(200, (24_990, 0, 25_011, 1))
    file = BytesIO()
    image.save(file, "PNG")
    found = array(pixels_of(file.getvalue(), vision, MAX_PIXELS))
    assert (found == 200).all()


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_all_formats_show_the_same(kind: str, vision: Vision) -> None:
    found, expected = (
        array(pixels_of(picture(3, kind=each, quality=95), vision, MAX_PIXELS)).astype(int)
        for each in (kind, "PNG")
    )
    assert np.abs(found - expected).mean() < 12


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "I;16", "1", "CMYK"])
def test_every_mode_becomes_rgb(mode: str, vision: Vision) -> None:
    file = BytesIO()
    image = Image.new("L", (40, 30), 200)
    image.convert("I").convert("I;16").save(file, "PNG") if mode == "I;16" else image.convert(mode).save(
        file, "JPEG" if mode == "CMYK" else "PNG"
    )
    assert len(pixels_of(file.getvalue(), vision, MAX_PIXELS)) == 3 * 28 * 28


def test_it_is_turned_as_its_exif_says(vision: Vision) -> None:
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    lying = pixels_of(picture(5, (56, 56), exif=exif.tobytes()), vision, MAX_PIXELS)
    straight = pixels_of(picture(5, (56, 56)), vision, MAX_PIXELS)
    assert np.array_equal(array(lying), array(straight)[:, ::-1, ::-1])


def test_of_a_photograph_with_a_preview_the_first_picture_counts(vision: Vision) -> None:
    first, second = (Image.open(BytesIO(picture(seed))) for seed in (1, 2))
    pair, single = BytesIO(), BytesIO()
    first.save(pair, "MPO", save_all=True, append_images=[second])
    first.save(single, "JPEG")
    assert pixels_of(pair.getvalue(), vision, MAX_PIXELS) == pixels_of(single.getvalue(), vision, MAX_PIXELS)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *more: bytes, data: bytes = b"") -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + b"".join(more)
        + chunk(b"IDAT", zlib.compress(data, 9))
        + chunk(b"IEND", b"")
    )


ZEROS = bytes(60_000_000)
BOMBS = {
    "huge in its header": (png(2**31 - 1, 2**31 - 1), "pixels"),
    "wide": (png(2**31 - 1, 1), "pixels"),
    "of no height": (png(5, 0), "no pixels"),
    "a deflate bomb": (png(1000, 1000, data=ZEROS), ""),
    "a deflate bomb in a text": (
        png(10, 10, chunk(b"zTXt", b"a\0\0" + zlib.compress(ZEROS, 9)), data=bytes(310)),
        "damaged",
    ),
    "a deflate bomb in a profile": (
        png(10, 10, chunk(b"iCCP", b"a\0\0" + zlib.compress(ZEROS, 9)), data=bytes(310)),
        "damaged",
    ),
    "too little data": (png(1000, 1000, data=b"abc"), "damaged"),
    "animated webp": (
        picture(kind="WEBP", save_all=True, append_images=[Image.new("RGB", (60, 40))]),
        "animated",
    ),
    "animated png": (picture(save_all=True, append_images=[Image.new("RGB", (60, 40))]), "animated"),
    "a gif": (picture(kind="GIF"), "PNG, JPEG or WebP"),
}


@pytest.mark.parametrize(("file", "fault"), BOMBS.values(), ids=BOMBS)
def test_a_bomb_ends_soon(file: bytes, fault: str, vision: Vision) -> None:
    began_s = time.process_time()
    with pytest.raises(ImageFault, match=fault) if fault else nullcontext():
        assert len(pixels_of(file, vision, MAX_PIXELS)) == 3 * 28 * 28
    assert time.process_time() - began_s < 2


def test_an_image_of_a_lying_header_is_checked_again(vision: Vision) -> None:
    first = chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 9, 8, 2, 0, 0, 0))
    second = png(4000, 4000, data=bytes(1000))
    with pytest.raises(ImageFault):
        pixels_of(second[:8] + first + second[8:], vision, MAX_PIXELS)


SOUND = [picture(7, (30, 20), kind) for kind in ("PNG", "JPEG", "WEBP")]
VISION = replace(Vision("clip", 28, 14, 8, 8, 1, 1, 1e-5, "gelu", 5), resize="shortest", resized=28)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    file = bytearray(draw(st.sampled_from(SOUND)))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(file) - 1))
        how = draw(st.sampled_from(["set", "cut", "twice", "in"]))
        if how == "set":
            file[at] = draw(st.integers(0, 255))
        elif how == "cut":
            del file[at : at + draw(st.integers(1, 8))]
        elif how == "twice":
            file[at:at] = file[at : at + draw(st.integers(1, 40))]
        else:
            file[at:at] = draw(st.binary(max_size=8))
        if not file:
            break
    return bytes(file)


@settings(max_examples=300, deadline=None)
@given(file=mutated())
def test_a_mutated_file_is_read_or_refused(file: bytes) -> None:
    with suppress(ImageFault):
        assert len(pixels_of(file, VISION, MAX_PIXELS)) == VISION.num_bytes
