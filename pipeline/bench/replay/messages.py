"""Messages: a recording sent openly, whatever the stage answers. For any stage, by whoever it was written."""

import asyncio
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from pipeline.bench.replay.anew import Change, anew, num_rows_of, unchanged
from pipeline.bench.replay.begun import Begun
from pipeline.bench.replay.clients import Clients, most_at_once
from pipeline.bench.replay.pace import Pace
from pipeline.bench.stand import Feed, Stand
from pipeline.messages import Open
from pipeline.runtime.inbox import Taken
from pipeline.runtime.recording import Entry, Recording

_REST_S = 0.001


class Messages(Feed):
    """Each message on its lane: when it was sent, or batch by batch as it was taken, the next when the one
    before is. What a stage waits for beside its inbox is not there, so nothing answers it.
    """

    def __init__(self, recording: Recording, pace: Pace, change: Change = unchanged) -> None:
        super().__init__()
        self._change = change
        self.num_messages = len(recording.entries)
        """Of the recording."""
        self._entries = recording.entries
        self._begin_ns = recording.header.begin_ns
        self._pace = pace
        self._begun = Begun()
        self._num_read = self._num_sent = 0
        self._taken: _TakenCount | None = None
        self._clients: Clients | None = None
        self._num_clients = most_at_once(entry.message for entry in recording.entries)

    async def send(self, stand: Stand, num_messages: int) -> None:
        """The next ones of the recording, and those that were taken together with the last of them."""
        taken = self._taken = self._taken or _TakenCount(stand)
        if self._num_clients and self._clients is None:
            self._clients = Clients()
            await self._clients.connect(self._num_clients)
        part = self._part(num_messages)
        if self._pace.factor is None:
            for _, batch in groupby(part, lambda entry: entry.batch):
                for entry in batch:
                    await self._put(stand, entry)
                await taken.reach(self._num_sent)
        else:
            for entry in sorted(part, key=lambda entry: entry.at_ns):
                await self._pace.until(self._pace.due_ns(entry.at_ns, stand.clock()), stand.clock)
                await self._put(stand, entry)
            await taken.reach(self._num_sent)
        while not stand.is_at_rest:  # noqa: ASYNC110 - a stage signals nobody when it is done
            await asyncio.sleep(_REST_S)

    def gave(self, stand: Stand, message: object) -> None:
        pass

    def close(self) -> None:
        if self._clients is not None:
            self._clients.close()

    def _part(self, num_messages: int) -> Sequence[Entry]:
        entries, begin = self._entries, self._num_read
        end = min(begin + num_messages, len(entries))
        while begin < end < len(entries) and entries[end].batch == entries[end - 1].batch:
            end += 1
        self._num_read = end
        part = entries[begin:end]
        if part:
            first_ns = min(entry.at_ns for entry in part)
            self.recorded_ns += max(entry.at_ns for entry in entries[begin : end + 1]) - first_ns
        return part

    async def _put(self, stand: Stand, entry: Entry) -> None:
        message = self._begun.of(anew(entry.message, stand.clock() - self._begin_ns - entry.at_ns))
        self.num_left_out = self._begun.num_left_out
        if message is None:
            return
        if self._clients is not None and isinstance(message, Open):
            message = self._clients.of(message)
        message = self._change(message)
        self._num_sent += 1
        self.num_rows += num_rows_of(message)
        if entry.is_control:
            stand.inbox.post(message)
        else:
            await stand.inbox.send(message)


class _TakenCount:
    """Counts what the stage takes from now on."""

    def __init__(self, stand: Stand) -> None:
        self._count = self._wanted = 0
        self._reached: asyncio.Future[None] | None = None
        stand.inbox.taps = (*stand.inbox.taps, self._take)

    async def reach(self, count: int) -> None:
        """Until so many have been taken."""
        if self._count < count:
            self._wanted = count
            self._reached = asyncio.get_running_loop().create_future()
            await self._reached

    def _take(self, taken: Taken[Any]) -> None:
        self._count += len(taken.messages)
        if self._reached is not None and not self._reached.done() and self._count >= self._wanted:
            self._reached.set_result(None)
