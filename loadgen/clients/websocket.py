"""`GET /v1/stream`: JSON frames, requests multiplexed over a few WebSockets that are open before the run.

A request takes the socket with the fewest live requests. A socket that breaks fails the requests
on it, and the next request opens a new one in its place. A request that reads oddly on purpose has
a socket of its own, for reading one slowly would slow down its neighbours.
"""

import asyncio
from collections.abc import Callable
from itertools import count

import msgspec

from loadgen.behaviours import PLAIN, Conduct
from loadgen.clients.api import Prompt, body, describe
from loadgen.clients.dial import Dialer
from loadgen.clients.manners import Manners
from loadgen.clients.websocket_connection import Connection, Live
from loadgen.errors import ServerError
from loadgen.record import Record


class WebsocketClient:
    """Client for this project's server. `open` comes first.

    Args:
        dialer: of the server.
        asks_timings: of each request where its time went.
        clock: seconds after the start of the run.
    """

    def __init__(
        self, dialer: Dialer, model: str | None, clock: Callable[[], float], *, asks_timings: bool = False
    ) -> None:
        self._dialer = dialer
        self._model = model
        self._clock = clock
        self._more = {"timings": True} if asks_timings else {}
        self._opening = asyncio.Lock()
        self._connections: list[Connection] = []
        self._ids = count()

    async def open(self, num_sockets: int) -> None:
        """Raises ServerError if a socket cannot be opened."""
        try:
            for _ in range(num_sockets):
                self._connections.append(await self._connect())
        except OSError as error:
            url = f"{self._dialer.host}{self._dialer.path}/v1/stream"
            raise ServerError(f"cannot open a websocket at {url}: {describe(error)}") from error

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()

    async def generate(
        self, prompt: Prompt, max_tokens: int, record: Record, conduct: Conduct = PLAIN
    ) -> None:
        """See `Client.generate`. Cancelled, it tells the server to stop that request."""
        record.request_name = str(next(self._ids))
        frame = {"type": "generate", "id": record.request_name}
        wire = msgspec.json.encode(frame | body(self._model, prompt, max_tokens) | self._more)
        record.sent_s = self._clock()
        try:
            connection = await (self._connect(is_small=True) if conduct.reads_oddly else self._least_busy())
        except OSError as error:
            record.fail("connect", describe(error))
            return
        try:
            await self._exchange(connection, record, wire, conduct)
        finally:
            if conduct.reads_oddly:
                connection.hang_up()

    async def _exchange(self, connection: Connection, record: Record, wire: bytes, conduct: Conduct) -> None:
        """Sends `wire` and returns when its answer has ended."""
        if not connection.is_open:  # lost between its opening and now
            record.fail("disconnected", "the websocket was closed as soon as it was open")
            return
        name = str(record.request_name)
        live = Live(record)

        def leave() -> None:
            record.ended_by = "client"
            connection.cancel(name)
            live.end()

        if conduct is not PLAIN:
            live.manners = Manners(conduct, record, connection.transport, leave)
            connection.owner = live.manners if conduct.reads_oddly else None
        connection.live[name] = live
        try:
            connection.send(wire)
            await live.ended
        except asyncio.CancelledError:
            connection.cancel(name)
            raise
        finally:
            del connection.live[name]
            live.manners = connection.owner = None  # else a cycle, by way of `leave`

    async def _least_busy(self) -> Connection:
        """Raises OSError if a broken one cannot be replaced."""
        connections = self._connections
        best = min(range(len(connections)), key=lambda i: len(connections[i].live))
        if not connections[best].is_open:
            async with self._opening:
                if not connections[best].is_open:
                    connections[best] = await self._connect()
        return connections[best]

    async def _connect(self, *, is_small: bool = False) -> Connection:
        """Raises OSError."""
        connection = await self._dialer.open(lambda: Connection(self._clock), is_small=is_small)
        await connection.upgrade(f"{self._dialer.path}/v1/stream", self._dialer.host)
        return connection
