"""Server-sent events, sans I/O (WHATWG HTML 9.2.6), as far as OpenAI-shaped servers use them."""


class EventSplitter:
    """Bytes in any pieces to the `data` of whole events. Comments (pings) and other fields are left out."""

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of each event that `piece` ends; lines of one event are joined by a newline."""
        *lines, self._tail = (self._tail + piece).split(b"\n")
        events: list[bytes] = []
        for line in lines:
            self._line(line.removesuffix(b"\r"), events)
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            events.append(b"\n".join(self._data))
            self._data.clear()
