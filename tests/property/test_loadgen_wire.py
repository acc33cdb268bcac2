"""What the load generator reads does not depend on how the network cuts it."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.clients.frames import PING, TEXT, FrameReader
from loadgen.clients.http1 import BodyReader, Head
from loadgen.clients.sse_events import EventSplitter
from tests.unit.loadgen.test_frames import server_frame

CUTS = st.lists(st.integers(0, 10_000), max_size=30)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    """`stream` in pieces, some of them empty."""
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[begin:end] for begin, end in pairwise(edges)]


@given(st.lists(st.tuples(st.sampled_from([TEXT, PING]), st.binary(max_size=300)), max_size=8), CUTS)
@settings(max_examples=100, deadline=None)
def test_websocket_messages(messages: list[tuple[int, bytes]], places: list[int]) -> None:
    stream = b"".join(server_frame(opcode, payload) for opcode, payload in messages)
    reader = FrameReader(1000)
    assert [message for piece in cut(stream, places) for message in reader.feed(piece)] == messages


@given(st.lists(st.binary(min_size=1, max_size=100), max_size=8), CUTS)
@settings(max_examples=100, deadline=None)
def test_http_chunks(chunks: list[bytes], places: list[int]) -> None:
    stream = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    body = BodyReader(Head(200, {"transfer-encoding": "chunked"}))
    content = b""
    for piece in cut(stream, places):
        assert not body.is_complete or not piece
        content += body.feed(piece) if piece else b""
    assert content == b"".join(chunks) and body.keeps_open


LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=20)
EVENT = st.lists(LINE, min_size=1, max_size=3)


@given(st.lists(EVENT, max_size=6), st.sampled_from(["\n", "\r\n"]), CUTS)
@settings(max_examples=100, deadline=None)
def test_server_sent_events(events: list[list[str]], newline: str, places: list[int]) -> None:
    """Each event's lines, pings between them."""
    said = [newline.join([*(f"data: {line}" for line in event), "", ": ping", "", ""]) for event in events]
    splitter = EventSplitter()
    found = [data for piece in cut("".join(said).encode(), places) for data in splitter.feed(piece)]
    assert found == ["\n".join(event).encode() for event in events]
