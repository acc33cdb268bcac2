"""Clients of a replayed stage that writes to them: over SSE, on one connection of this machine.

To write a piece of an answer is most of what such a stage does, so a sink that costs nothing would make it
another one.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from pipeline.core.framing import http_chunk
from pipeline.core.wire import ChatAnswer, CompletionAnswer, Wanted
from pipeline.errors import RequestError
from pipeline.messages import Completion, Open, SamplingParams, TokenLogprob

_WANTED = [Wanted("", None, SamplingParams())]


class Clients:
    """The connection that they share; whoever is at its other end reads all of it."""

    def __init__(self, writer: asyncio.Transport, reader: asyncio.BaseTransport) -> None:
        self._writer = writer
        self._reader = reader

    @classmethod
    async def connected(cls) -> "Clients":
        loop = asyncio.get_running_loop()
        ends = socket.socketpair()
        reader, _ = await loop.create_connection(asyncio.Protocol, sock=ends[0])
        writer, _ = await loop.create_connection(asyncio.Protocol, sock=ends[1])
        return cls(writer, reader)

    def of(self, opened: Open) -> Open:
        """The same request, with a client of its own."""
        client = Client(opened, self._writer.write)
        return replace(opened, sink=client, logprobs_sink=client if opened.logprobs_sink else None)

    def close(self) -> None:
        self._writer.close()
        self._reader.close()


class Client:
    """Implements ClientSink and LogprobsSink. It always has room."""

    def __init__(self, opened: Open, write: Callable[[bytes], None]) -> None:
        kind = ChatAnswer if opened.is_chat else CompletionAnswer
        self._answer = kind(f"replay-{opened.request_id}", 0, "replay", _WANTED)
        self._shape = self._answer.choices[0]
        self._write = write
        self._told: Sequence[TokenLogprob] = ()

    def delta(self, text: str, num_tokens: int) -> None:
        told, self._told = self._told, ()
        if data := self._shape.delta(text, told):
            self._write(http_chunk(data))

    def logprobs(self, entries: list[TokenLogprob]) -> None:
        self._told = entries

    def done(self, completion: Completion) -> None:
        self._write(http_chunk(self._shape.finish(completion) + self._answer.end([completion])))

    def error(self, error: RequestError) -> None:
        self._write(http_chunk(self._answer.fail(error)))

    def buffered_bytes(self) -> int:
        return 0

    def is_away(self) -> bool:
        return False
