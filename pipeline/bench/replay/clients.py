"""Clients of a replayed stage that writes to them: over SSE, each on a connection of this machine.

To write a piece of an answer is most of what such a stage does. A sink that costs nothing would make it
another one, and so would one connection for all, or one that this process reads: a write takes 2 us then, and
20 us where it wakes the process of a client.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle
from subprocess import PIPE, Popen

from msgspec.structs import replace

from pipeline.bench.reader import HOST
from pipeline.core.framing import http_chunk
from pipeline.core.wire import ChatAnswer, CompletionAnswer, Wanted
from pipeline.errors import RequestError, StagelineError
from pipeline.messages import Completion, Open, Rejected, SamplingParams, TextBatch, TokenLogprob

_WANTED = [Wanted("", None, SamplingParams())]
_MAX_CONNECTIONS = 256


class Clients:
    """Their connections; a process of its own reads all of them. Who comes is given the next one in turn."""

    def __init__(self) -> None:
        self._process = Popen((sys.executable, "-m", "pipeline.bench.reader"), stdin=PIPE, stdout=PIPE)
        self._transports: list[asyncio.Transport] = []
        self._turn: Iterator[asyncio.Transport] = iter(())

    async def connect(self, num_connections: int) -> None:
        """The first thing that must be called."""
        assert self._process.stdout is not None, "it was made with pipes"
        line = await asyncio.to_thread(self._process.stdout.readline)
        if not line.strip().isdigit():
            raise StagelineError("the process that reads for clients did not start; its reason stands above")
        loop = asyncio.get_running_loop()
        for _ in range(min(num_connections, _MAX_CONNECTIONS)):
            transport, _ = await loop.create_connection(asyncio.Protocol, HOST, int(line))
            self._transports.append(transport)
        self._turn = cycle(self._transports)

    def of(self, opened: Open) -> Open:
        """The same request, with a client of its own."""
        client = Client(opened, next(self._turn).write)
        return replace(opened, sink=client, logprobs_sink=client if opened.logprobs_sink else None)

    def close(self) -> None:
        for transport in self._transports:
            transport.close()
        with self._process as process:  # closes its pipes, and waits
            process.kill()


def most_at_once(messages: Iterable[object]) -> int:
    """How many requests were open at the same time, by what a streamer took."""
    live: set[int] = set()
    most = 0
    for message in messages:
        if isinstance(message, Open):
            live.add(message.request_id)
            most = max(most, len(live))
        elif isinstance(message, Rejected):
            live.discard(message.request_id)
        elif isinstance(message, TextBatch):
            ended = zip(message.request_ids, message.finish_reasons, strict=True)
            live.difference_update(request_id for request_id, finish in ended if finish)
    return most


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
