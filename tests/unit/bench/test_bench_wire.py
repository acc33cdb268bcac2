import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.bench.wire import (
    PING,
    TEXT,
    Frame,
    client_frame,
    take_chunks,
    take_frames,
    take_head,
)
from pipeline.core.framing import http_chunk, text_frame

PAYLOADS = [b"", b"a", b"b" * 125, b"c" * 126, b"d" * 65_535, b"e" * 65_536]


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000, 1 << 20])
def test_frames_of_the_server_come_whole_however_they_are_cut(size: int) -> None:
    sent, rest, taken = b"".join(map(text_frame, PAYLOADS)), b"", []
    for piece in in_pieces(sent, size) if size > 100 else in_pieces(sent[:800], size):
        frames, rest = take_frames(rest + piece)
        taken += frames
    expected = PAYLOADS if size > 100 else PAYLOADS[:4]
    assert taken == [Frame(TEXT, payload) for payload in expected]


@given(st.lists(st.binary(min_size=1, max_size=300)), st.integers(1, 50))
def test_chunks_of_the_server_come_whole_however_they_are_cut(payloads: list[bytes], size: int) -> None:
    sent, rest, taken = b"".join(map(http_chunk, payloads)) + b"0\r\n\r\n", b"", []
    for piece in in_pieces(sent, size):
        chunks, rest = take_chunks(rest + piece)
        taken += chunks
    assert taken == [*payloads, b""]
    assert rest == b""


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_client_frame_is_masked_and_says_its_size(payload: bytes) -> None:
    frame = client_frame(PING, payload)
    assert frame[0] == 0x80 | PING
    assert frame[1] & 0x80, "a client must mask (RFC 6455 section 5.1)"
    assert frame.endswith(bytes(4) + payload)
    unmasked = bytes((frame[0], frame[1] & 0x7F)) + frame[2 : -4 - len(payload)] + payload
    assert take_frames(unmasked) == ([Frame(PING, payload)], b"")


def test_a_head_is_read_once_it_is_whole() -> None:
    assert take_head(b"HTTP/1.1 200 OK\r\nA: b") == (None, b"HTTP/1.1 200 OK\r\nA: b")
    answer, rest = take_head(b"HTTP/1.1 429 Too Many\r\nRetry-After: 1\r\n\r\nbody")
    assert answer is not None
    assert (answer.status, answer.headers) == (429, {"retry-after": "1"})
    assert rest == b"body"
