"""AtTheDoor: requests over a socket of this machine, for the stage that is sent none through its inbox.

Measured is what the door does with a request: from when its handler has it to when it leaves for tokenize, by
the times that are in every GenerateRequest. All stages behind the door are played by this feed: every request
is answered at once.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

from pipeline.bench.replay.pace import Pace
from pipeline.bench.requests import http_of
from pipeline.bench.samples import Load, generate_request
from pipeline.bench.stand import Feed, Stand
from pipeline.errors import StagelineError
from pipeline.messages import Completion, FinishReason, GenerateRequest, Open, Timings
from pipeline.runtime.recording import Recording

_HOST = "127.0.0.1"
_COMPLETION = Completion(FinishReason.LENGTH, 1, 1, Timings((), 0, None))


_WAY_NS = 500_000
"""Beside others a request is written so long before its handler had it;"""
_ANSWER_NS = 10_000_000
"""and answered so long after that: as in the server, not while it is tokenized."""


class Due(NamedTuple):
    at_ns: int
    request: bytes


class AtTheDoor(Feed):
    """One connection: where two requests are due at once, the second one waits in it for the first."""

    def __init__(self, due: Iterable[Due], pace: Pace, num_left_out: int = 0) -> None:
        super().__init__()
        self._due = deque(due)
        self.num_messages = len(self._due)
        self.num_left_out = num_left_out
        self._pace = pace
        self._services_us: list[tuple[int, float]] = []
        self._line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, stand: Stand, num_messages: int) -> None:
        reader, writer = self._line = self._line or await _connected(stand)
        count = min(num_messages, len(self._due))
        async with asyncio.TaskGroup() as group:
            answers = group.create_task(_answered(reader, count)) if self._pace.factor else None
            for _ in range(count):
                due = self._due.popleft()
                self._count(due)
                if answers is not None:
                    due_ns = self._pace.due_ns(due.at_ns, stand.clock())
                    await self._pace.until(due_ns - _WAY_NS * self._pace.is_shared, stand.clock)
                writer.write(due.request)
                if answers is None:
                    await _answered(reader, 1)

    def gave(self, stand: Stand, message: object) -> None:
        if isinstance(message, GenerateRequest):
            service_ns = message.sent_ns - message.arrived_ns
            self._services_us.append((message.arrived_ns, service_ns / 1e3))
            self.num_rows += 1
        elif isinstance(message, Open):
            if self._pace.is_shared:
                self._pace.call_in(_ANSWER_NS, partial(_answer, message))
            else:
                _answer(message)

    def end(self, stand: Stand) -> None:
        self.close()

    def close(self) -> None:
        if self._line is not None:
            self._line[1].close()

    def services_us(self, stand: Stand, since_ns: int) -> list[float]:
        return [service_us for at_ns, service_us in self._services_us if at_ns >= since_ns]

    def _count(self, due: Due) -> None:
        if self._due:
            self.recorded_ns += self._due[0].at_ns - due.at_ns


def samples(load: Load, num_requests: int) -> AtTheDoor:
    """Prompts as of `generate_request`, one behind the other."""
    requests = (http_of(generate_request(load, number, 0), _HOST) for number in range(num_requests))
    return AtTheDoor([Due(0, request) for request in requests if request is not None], Pace(None))


def recorded(recording: Recording, pace: Pace) -> AtTheDoor:
    """Those of a recording of tokenize's inbox, when their handlers had them."""
    begin_ns = recording.header.begin_ns
    sent = [entry.message for entry in recording.entries if isinstance(entry.message, GenerateRequest)]
    requests = [(message.arrived_ns - begin_ns, http_of(message, _HOST)) for message in sent]
    due = sorted(Due(at_ns, request) for at_ns, request in requests if request is not None)
    if not due:
        raise StagelineError("the recording holds no request: it must be of all links to tokenize")
    return AtTheDoor(due, pace, len(sent) - len(due))


def recorded_services_us(recording: Recording) -> list[float]:
    """What the door took for each of them when they were recorded."""
    return [
        (entry.message.sent_ns - entry.message.arrived_ns) / 1e3
        for entry in recording.entries
        if isinstance(entry.message, GenerateRequest)
    ]


def _answer(opened: Open) -> None:
    opened.sink.delta("a", 1)
    opened.sink.done(_COMPLETION)


async def _connected(stand: Stand) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    door: Any = stand.stages[0]
    return await asyncio.open_connection(_HOST, door.port)


async def _answered(reader: asyncio.StreamReader, count: int) -> None:
    """Read so many answers. Raises StagelineError for one that is no success."""
    for _ in range(count):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = await reader.readexactly(int(lines["content-length"]))
        if head.split(" ", 2)[1] != "200":
            raise StagelineError(f"a request was refused at the door: {body[:500].decode(errors='replace')}")
