"""HTTP/1.1 as far as one client needs it, sans I/O (RFC 9112). By hand: a chunk must cost microseconds."""

from typing import NamedTuple

MAX_HEAD_BYTES = 65536
_WITHOUT_BODY = (204, 304)


class HttpError(ValueError):
    """What came is no HTTP/1.1 response."""


class Head(NamedTuple):
    """Status line and fields of a response; names in lower case."""

    status: int
    fields: dict[str, str]


def request(method: str, path: str, host: str, fields: dict[str, str], body: bytes = b"") -> bytes:
    """A whole request; `host` may have a port."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{k}: {v}" for k, v in fields.items())]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def take_head(data: bytes) -> tuple[Head | None, bytes]:
    """The first final head in `data` (1xx but 101 are skipped) and what follows it; None: not whole yet.

    Raises:
        HttpError: it is none, or longer than MAX_HEAD_BYTES.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        if len(data) > MAX_HEAD_BYTES or not b"HTTP/1.".startswith(data[:7]):
            raise HttpError(f"no HTTP/1.1 response: {data[:60]!r}")
        return None, data
    status_line, *lines = data[:end].decode("latin-1").split("\r\n")
    version, _, rest = status_line.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise HttpError(f"no HTTP/1.1 response: {data[:60]!r}")
    status, data = int(rest[:3]), data[end + 4 :]
    if 100 <= status < 200 and status != 101:
        return take_head(data)
    pairs = (line.partition(":") for line in lines)
    fields = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if version == "HTTP/1.0":
        fields.setdefault("connection", "close")
    return Head(status, fields), data


class BodyReader:
    """The body of a response, from bytes in any pieces: chunked, of a length, or up to the close."""

    def __init__(self, head: Head) -> None:
        self.is_complete = False
        self._fields = head.fields
        self._is_chunked = "chunked" in head.fields.get("transfer-encoding", "").lower()
        self._rest = b""
        length = "0" if head.status in _WITHOUT_BODY else head.fields.get("content-length")
        self._left = None if self._is_chunked or length is None else _number(length.encode(), 10)
        self._settle()

    @property
    def ends_at_close(self) -> bool:
        return self._left is None and not self._is_chunked

    @property
    def keeps_open(self) -> bool:
        """The connection may be used again: nothing has come behind the body, which is complete."""
        is_closing = self.ends_at_close or self._fields.get("connection", "").lower() == "close"
        return self.is_complete and not is_closing and not self._rest

    def feed(self, data: bytes) -> bytes:
        """The content in `data` (of chunks: those that are whole). Raises HttpError for a wrong chunk."""
        if self._is_chunked:
            return self._chunks(self._rest + data if self._rest else data)
        if self._left is None:
            return data
        content, self._rest = data[: self._left], data[self._left :]
        self._left -= len(content)
        self._settle()
        return content

    def _settle(self) -> None:
        self.is_complete = self._left == 0

    def _chunks(self, data: bytes) -> bytes:
        pieces, at = [], 0
        while (end := data.find(b"\r\n", at)) >= 0:
            begin = end + 2
            size = _number(data[at:end], 16)
            if size == 0:
                at = self._trailers(data, at, end)
                break
            if len(data) < begin + size + 2:
                break
            pieces.append(data[begin : begin + size])
            at = begin + size + 2
        self._rest = data[at:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _trailers(self, data: bytes, at: int, end: int) -> int:
        """Past the last chunk (at `at`, its line ending at `end`), or still at it if its end has not come."""
        stop = data.find(b"\r\n\r\n", end)
        self.is_complete = stop >= 0
        return stop + 4 if self.is_complete else at


def _number(text: bytes, base: int) -> int:
    """Raises HttpError. Chunk extensions are left out."""
    try:
        number = int(text if text.isalnum() else text.partition(b";")[0], base)
    except ValueError:
        number = -1
    if number < 0:
        raise HttpError(f"expected a length, got {text[:20]!r}")
    return number
