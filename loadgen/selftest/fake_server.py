"""A server that answers anything with tokens at an even pace, as cheaply as Python can: a process of its own.

It speaks as much of HTTP, SSE and `/v1/stream` as loadgen's clients do, one write for each token, and prints
its port. It is no model of a server's latency; it is there to be faster than the generator.
"""

import argparse
import asyncio
import gc
import re
import sys
from typing import cast

import msgspec
import uvloop

from loadgen.clients.frames import CLOSE, PING, TEXT, accept, masked

TICK_S = 0.001
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_KEY = re.compile(rb"sec-websocket-key: *(\S+)", re.IGNORECASE)


class _Wanted(msgspec.Struct):
    max_tokens: int = 1
    type: str = "generate"
    id: str = ""


_wanted = msgspec.json.Decoder(_Wanted).decode


class Stream:
    """One answer: bytes of each token, and of the end."""

    def __init__(self, transport: asyncio.Transport, num_tokens: int, token: bytes, end: bytes) -> None:
        self._transport = transport
        self._num_left = num_tokens
        self._token = token
        self._end = end

    def step(self) -> bool:
        """Writes one token; false once there is no more to write."""
        if self._transport.is_closing():
            return False
        self._transport.write(self._token)
        self._num_left -= 1
        if not self._num_left:
            self._transport.write(self._end)
        return self._num_left > 0


class Wheel:
    """Steps every stream once in `num_ticks` ticks, each on the tick on which it was added."""

    def __init__(self, num_ticks: int) -> None:
        self._slots: list[list[Stream]] = [[] for _ in range(num_ticks)]
        self._tick = 0

    def add(self, stream: Stream) -> None:
        self._slots[self._tick % len(self._slots)].append(stream)

    async def turn(self) -> None:
        """Runs for ever. Ticks that it could not keep are made up for, none is left out."""
        clock = asyncio.get_running_loop().time
        begin_s = clock()
        while True:
            self._tick += 1
            await asyncio.sleep(max(0.0, begin_s + self._tick * TICK_S - clock()))
            slot = self._tick % len(self._slots)
            self._slots[slot] = [stream for stream in self._slots[slot] if stream.step()]


class Connection(asyncio.Protocol):
    """HTTP until an upgrade, then WebSocket frames."""

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._rest = b""
        self._is_websocket = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while self._frame() if self._is_websocket else self._request():
            pass

    def _request(self) -> bool:
        """Takes one whole request; false if there is none."""
        head, separator, rest = self._rest.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        if not separator or len(rest) < size:
            return False
        body, self._rest = rest[:size], rest[size:]
        if head.startswith(b"GET /v1/models"):
            self._transport.write(_response(b'{"object":"list","data":[{"id":"fake"}]}'))
        elif key := _KEY.search(head):
            self._transport.write(_UPGRADE % accept(key[1].decode()).encode())
            self._is_websocket = True
        elif head.startswith(b"POST"):
            wanted = _wanted(body)
            self._transport.write(_SSE_HEAD)
            self._wheel.add(
                Stream(self._transport, wanted.max_tokens, _SSE_TOKEN, _sse_end(wanted.max_tokens))
            )
        else:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        return True

    def _frame(self) -> bool:
        """Takes one whole client's frame; false if there is none."""
        data = self._rest
        if len(data) < 2:
            return False
        length, begin = data[1] & 0x7F, 6
        if length > 125:
            begin = 8 if length == 126 else 14
            length = int.from_bytes(data[2 : begin - 4])
        if len(data) < begin + length:
            return False
        payload = masked(data[begin : begin + length], data[begin - 4 : begin])
        self._rest = data[begin + length :]
        self._obey(data[0] & 0x0F, payload)
        return True

    def _obey(self, opcode: int, payload: bytes) -> None:
        if opcode == CLOSE:
            self._transport.write(_frame(payload[:2], CLOSE))
            self._transport.close()
        elif opcode == TEXT:
            wanted = _wanted(payload)
            if wanted.type == "generate":
                name, count = wanted.id.encode(), wanted.max_tokens
                self._transport.write(_frame(b'{"type":"accepted","id":"%b"}' % name))
                token = _frame(b'{"type":"delta","id":"%b","text":" word","tokens":1}' % name)
                self._wheel.add(Stream(self._transport, count, token, _frame(_DONE % (name, count))))
        elif opcode == PING:
            raise ValueError("a client that pings is none of ours")


_UPGRADE = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: %b\r\n\r\n"
)
_DONE = (
    b'{"type":"done","id":"%b","finish_reason":"length","usage":{"prompt_tokens":1,"completion_tokens":%d}}'
)
_SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _response(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


def _frame(payload: bytes, opcode: int = TEXT) -> bytes:
    size = len(payload)
    head = bytes((0x80 | opcode, size)) if size < 126 else bytes((0x80 | opcode, 126)) + size.to_bytes(2)
    return head + payload


def _event(choices: bytes, usage: bytes) -> bytes:
    """One HTTP chunk of one event, as long as OpenAI's."""
    event = (
        b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,"model":"fake",'
        b'"choices":[%b],"usage":%b}\n\n' % (choices, usage)
    )
    return b"%x\r\n%b\r\n" % (len(event), event)


_CHOICE = b'{"index":0,"text":"%b","logprobs":null,"finish_reason":%b}'
_SSE_TOKEN = _event(_CHOICE % (b" word", b"null"), b"null")


def _sse_end(num_tokens: int) -> bytes:
    usage = b'{"prompt_tokens":1,"completion_tokens":%d,"total_tokens":%d}' % (num_tokens, num_tokens + 1)
    last = _event(_CHOICE % (b"", b'"length"'), b"null") + _event(b"", usage)
    return last + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


async def serve(gap_s: float) -> None:
    """Runs until killed; the port is the first line of the output."""
    gc.disable()  # it lives for seconds, and a pause would come out as a burst
    wheel = Wheel(max(1, round(gap_s / TICK_S)))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(wheel), "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await wheel.turn()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gap-s", type=float, default=0.02)
    uvloop.run(serve(parser.parse_args().gap_s))
