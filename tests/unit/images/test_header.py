"""What files say of their size, and what is refused before a library sees them."""

import struct
from contextlib import suppress

import pytest

from pipeline.images.header import MAX_SCANS, Header, ImageFault, read_header
from tests.tiny_vision import picture

FILES = {
    "png": ("PNG", picture(size=(60, 40))),
    "jpeg": ("JPEG", picture(size=(60, 40), kind="JPEG")),
    "progressive": ("JPEG", picture(size=(60, 40), kind="JPEG", progressive=True)),
    "webp": ("WEBP", picture(size=(60, 40), kind="WEBP")),
    "lossless webp": ("WEBP", picture(size=(60, 40), kind="WEBP", lossless=True)),
    "webp with metadata": ("WEBP", picture(size=(60, 40), kind="WEBP", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0")),
}


@pytest.mark.parametrize(("form", "file"), FILES.values(), ids=FILES)
def test_the_size_is_read(form: str, file: bytes) -> None:
    assert read_header(file) == Header(form, 60, 40)  # type: ignore[arg-type]


@pytest.mark.parametrize(("form", "file"), FILES.values(), ids=FILES)
def test_a_file_that_is_cut_short_is_a_fault(form: str, file: bytes) -> None:
    whole = read_header(file)
    for length in range(200):
        with suppress(ImageFault):
            assert read_header(file[:length]) == whole


@pytest.mark.parametrize(
    "file",
    [b"", b"GIF89a" + bytes(50), b"BM" + bytes(60), b"%PDF-1.4", b"<svg/>", b"RIFF\0\0\0\0WAVE", b"II*\0"],
)
def test_other_formats_are_none(file: bytes) -> None:
    with pytest.raises(ImageFault, match="PNG, JPEG or WebP"):
        read_header(file)


def test_a_jpeg_of_many_scans_is_refused() -> None:
    scan = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"
    with pytest.raises(ImageFault, match=f"at most {MAX_SCANS} scans"):
        read_header(FILES["progressive"][1] + scan * MAX_SCANS)


@pytest.mark.parametrize(
    "file",
    [
        b"\xff\xd8\xff\xe0\x00\x00" + bytes(90),  # a segment of no length: it would never end
        b"\xff\xd8" + b"\xff" * 100,
        b"\xff\xd8\xff" + b"\xd0\xff" * 500,
        b"\xff\xd8\xff\xda" + bytes(90),
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IDAT" + bytes(40),
        b"RIFF\0\0\0\0WEBPVP8 " + bytes(40),
    ],
)
def test_headers_that_are_none_end(file: bytes) -> None:
    with pytest.raises(ImageFault, match="damaged"):
        read_header(file)
