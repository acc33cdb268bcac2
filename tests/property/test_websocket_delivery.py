"""R21 on a websocket: whatever is granted, acknowledged, lost and resumed, a client gets every frame of its
request exactly once and in order, and never more tokens than it granted.

The streamer, the request and its sessions are the real ones; the sockets and the client are the test's.
"""

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.keys import NOBODY
from pipeline.core.wire import Resumption, Wanted
from pipeline.errors import RequestError
from pipeline.messages import FinishReason, Grant, Open, SamplingParams
from pipeline.stages.ingress.sessions import Sessions
from pipeline.stages.ingress.sockets import Session, SocketRequest
from tests.unit.stages.stream_world import StreamWorld

BUFFER = 1024
"""Small: a handful of frames that are not acknowledged pauses the request."""

rows = st.lists(st.tuples(st.text("abc\u20ac<", max_size=3), st.integers(1, 2)), min_size=1, max_size=6)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), rows),
        st.tuples(st.just("grant"), st.integers(1, 5)),
        st.tuples(st.just("read"), st.integers(1, 4)),
        st.tuples(st.sampled_from(["ack", "lose", "resume"])),
        st.tuples(st.just("wait"), st.integers(1, 60)),
    ),
    min_size=5,
    max_size=40,
)


class Pipe:
    """One connection: what was written and not read yet is lost with it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, payload: bytes) -> None:
        self.written.append(payload)

    def buffered_bytes(self) -> int:
        return sum(map(len, self.written))


class FakeIntake:
    num_events = 0

    def ended(self, request: SocketRequest, num_tokens: int) -> bool:
        return True

    def leave(self, request: SocketRequest) -> None:
        raise AssertionError("nobody is given up here")


class Client:
    """Connects again and again. What it has read it has, in `frames`."""

    def __init__(self, credits: int | None) -> None:
        self.world = StreamWorld(
            client_buffer_bytes=BUFFER, flush_ms=20.0, slow_client_s=1e6, max_paused_s=1e6
        )
        intake: Any = FakeIntake()
        self.sessions = Sessions(intake, 1e6, 8)
        self.pipe, self.session = self.connect()
        wanted = Wanted("p", None, SamplingParams(), credits=credits, is_resumable=True)
        self.request = SocketRequest(intake, 1, self.session, "a", wanted, self.sessions.ended)
        self.session.requests["a"] = self.request
        self.granted = credits
        self.frames: list[dict[str, Any]] = []
        self.said = ""
        self.num_said = 0

    def connect(self) -> tuple[Pipe, Session]:
        pipe: Any = Pipe()
        return pipe, self.sessions.open(pipe, NOBODY)

    @property
    def last_index(self) -> int:
        return self.frames[-1]["index"] if self.frames else 0

    async def act(self, action: tuple[Any, ...]) -> None:
        await getattr(self, f"_{action[0]}")(*action[1:])
        self.check()

    def check(self) -> None:
        assert [frame["index"] for frame in self.frames] == list(range(1, len(self.frames) + 1))
        assert self.said.startswith("".join(frame.get("text", "") for frame in self.frames))
        answer = self.world.stage._answers.get(1)
        if answer is not None and self.granted is not None:
            assert answer.num_written <= self.granted + 1, "a piece of two may overdraw by one"

    async def _rows(self, rows: list[tuple[str, int]]) -> None:
        for text, num_tokens in rows:
            self.said, self.num_said = self.said + text, self.num_said + num_tokens
            await self.world.rows((1, text, num_tokens, FinishReason.NONE))

    async def _finish(self) -> None:
        await self.world.rows((1, "", 0, FinishReason.LENGTH))

    async def _grant(self, num_tokens: int) -> None:
        if self.granted is not None:
            self.granted += num_tokens
            await self.world.stage.handle([Grant(1, num_tokens)])

    async def _read(self, count: int) -> None:
        for payload in self.pipe.written[:count]:
            frame = json.loads(payload)
            if frame["type"] != "resumed":
                self.frames.append(frame)
        del self.pipe.written[:count]

    async def _ack(self) -> None:
        if self.session.requests:
            self.request.acknowledge(self.last_index)

    async def _lose(self) -> None:
        self.sessions.close(self.session, is_lost=True)
        self.pipe.written.clear()

    async def _resume(self) -> None:
        """On a new socket, whether or not the loss of the old one was seen."""
        pipe, session = self.connect()
        try:
            self.sessions.resume(Resumption(self.session.token, self.last_index), "a", session)
        except RequestError as error:
            if error.code != "request_not_found" or self.frames[-1]["type"] != "done":
                raise
        else:
            self.pipe, self.session = pipe, session

    async def _wait(self, ms: int) -> None:
        await self.world.pass_time(ms)

    async def to_the_end(self) -> None:
        if self.granted is not None:
            await self._grant(self.num_said + 2)
        await self._resume()
        for _ in range(100):
            await self._read(99)
            await self._ack()
            await self._wait(50)
        self.check()
        assert [frame["type"] for frame in self.frames].count("done") == 1
        assert "".join(frame.get("text", "") for frame in self.frames) == self.said
        assert self.frames[-1]["usage"]["completion_tokens"] == self.num_said
        assert not self.session.requests and self.world.stage.num_live == 0


@settings(max_examples=60, deadline=None)
@given(actions, st.integers(0, 60), st.sampled_from([None, 1, 2, 5]))
def test_every_frame_once_and_in_order(todo: list[tuple[Any, ...]], when: int, credits: int | None) -> None:
    async def main() -> None:
        client = Client(credits)
        opened = Open(1, client.request, client.world.clock.now_ns, credits=credits)
        await client.world.stage.handle([opened])
        for action in todo[:when]:
            await client.act(action)
        await client._finish()
        for action in todo[when:]:
            if action[0] != "rows":
                await client.act(action)
        await client.to_the_end()
        client.sessions.stop()
        await client.world.stage.stop()

    asyncio.run(main())
