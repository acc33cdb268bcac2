import pytest

from pipeline.core.framing import http_chunk, text_frame


def test_http_chunk() -> None:
    assert http_chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"
    with pytest.raises(ValueError, match="ends the body"):
        http_chunk(b"")


@pytest.mark.parametrize(
    ("size", "head"),
    [
        (0, b"\x81\x00"),
        (125, b"\x81\x7d"),
        (126, b"\x81\x7e\x00\x7e"),
        (65_535, b"\x81\x7e\xff\xff"),
        (65_536, b"\x81\x7f\x00\x00\x00\x00\x00\x01\x00\x00"),
    ],
)
def test_text_frame_lengths(size: int, head: bytes) -> None:
    payload = b"a" * size
    assert text_frame(payload) == head + payload
