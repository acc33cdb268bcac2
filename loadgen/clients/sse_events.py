"""Server-sent events, sans I/O (WHATWG HTML 9.2.6), as far as OpenAI-shaped servers use them."""


class EventSplitter:
    """Bytes in any pieces to the `data` of whole events. Comments (pings) and other fields are left out."""

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of each event that `piece` ends; lines of one event are joined by a newline."""
        if piece[:6] == b"data: " and piece.find(b"\n") == len(piece) - 2 and self._is_between_events(piece):
            return [piece[6:-2]]  # nearly all of them: one event of one line, at half the cost
        *lines, self._tail = (self._tail + piece).split(b"\n")
        events: list[bytes] = []
        for line in lines:
            self._line(line.removesuffix(b"\r"), events)
        return events

    def _is_between_events(self, piece: bytes) -> bool:
        """One line and its blank one are all of `piece`, and nothing is left of what came before."""
        is_whole = piece[-2:] == b"\n\n" and piece[-3:] != b"\r\n\n"
        return is_whole and not self._tail and not self._data

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            events.append(b"\n".join(self._data))
            self._data.clear()
