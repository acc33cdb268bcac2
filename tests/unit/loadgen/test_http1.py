"""HTTP/1.1 responses by hand, in any pieces."""

import pytest

from loadgen.clients.http1 import BodyReader, Head, HttpError, request, take_head


def read(response: bytes, step: int) -> tuple[Head, bytes, BodyReader]:
    head, rest = None, b""
    body, content = None, b""
    for i in range(0, len(response), step):
        piece = response[i : i + step]
        if body is None:
            head, rest = take_head(rest + piece)
            if head is None:
                continue
            body, piece = BodyReader(head), rest
        content += body.feed(piece)
    assert head is not None and body is not None
    return head, content, body


CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b:c \r\n\r\n"
    b"5\r\nhello\r\nA;ext=1\r\n, world!\r\n\r\n1\r\n.\r\n0\r\n\r\n"
)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1000])
def test_chunks(step: int) -> None:
    head, content, body = read(CHUNKED, step)
    assert head.status == 200 and head.fields["x-a"] == "b:c"
    assert content == b"hello, world!\r\n." and body.is_complete and body.keeps_open


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_length_and_what_comes_before_the_final_head(step: int) -> None:
    refusal = b"HTTP/1.1 429 Too Many\r\nRetry-After: 2\r\nContent-Length: 4\r\n\r\nbusy"
    response = b"HTTP/1.1 100 Continue\r\n\r\n" + refusal
    head, content, body = read(response, step)
    assert (head.status, head.fields["retry-after"], content) == (429, "2", b"busy")
    assert body.is_complete and body.keeps_open


def test_trailers_are_left_out() -> None:
    _, content, body = read(CHUNKED[:-2] + b"Checksum: 1\r\nB: 2\r\n\r\n", 4)
    assert content == b"hello, world!\r\n." and body.is_complete


@pytest.mark.parametrize(
    ("fields", "body", "is_complete", "keeps_open"),
    [
        (b"Content-Length: 3\r\n", b"ab", False, False),
        (b"Content-Length: 2\r\n", b"ab", True, True),
        (b"Content-Length: 2\r\n", b"abc", True, False),
        (b"Content-Length: 2\r\nConnection: close\r\n", b"ab", True, False),
        (b"", b"ab", False, False),
        (b"Transfer-Encoding: chunked\r\n", b"2\r\nab\r\n0\r\n", False, False),
    ],
)
def test_when_a_body_is_whole_and_the_connection_free(
    fields: bytes, body: bytes, is_complete: bool, keeps_open: bool
) -> None:
    _, _, reader = read(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n" + body, 1000)
    assert (reader.is_complete, reader.keeps_open) == (is_complete, keeps_open)


def test_http_1_0_closes() -> None:
    _, _, body = read(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab", 1000)
    assert body.is_complete and not body.keeps_open


def test_without_a_body() -> None:
    head, _ = take_head(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert head is not None and BodyReader(head).is_complete


@pytest.mark.parametrize("start", [b"SSH-2.0-OpenSSH\r\n", b"<html>", b"HTTP/1.1 abc\r\n\r\n", b"x" * 70_000])
def test_what_is_no_response_is_an_error(start: bytes) -> None:
    with pytest.raises(HttpError):
        take_head(start)


@pytest.mark.parametrize("chunk", [b"zz\r\nab\r\n", b"-2\r\nab\r\n", b"\r\nab"])
def test_a_wrong_chunk_is_an_error(chunk: bytes) -> None:
    body = BodyReader(Head(200, {"transfer-encoding": "chunked"}))
    with pytest.raises(HttpError):
        body.feed(chunk)


def test_a_request() -> None:
    assert request("POST", "/v1", "h:1", {"A": "b"}, b"{}") == (
        b"POST /v1 HTTP/1.1\r\nHost: h:1\r\nA: b\r\nContent-Length: 2\r\n\r\n{}"
    )
