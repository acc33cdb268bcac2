"""`POST /v1/completions`, or `/v1/chat/completions`, with `stream`.

There is one connection per live request, kept open for the next one.
"""

from collections.abc import Callable

import aiohttp
import msgspec

from loadgen.clients.api import ErrorBody, Prompt, Usage, body, describe, finish
from loadgen.clients.sse_events import EventSplitter
from loadgen.record import Record

_HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream"}


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: ErrorBody | None = None


_chunks = msgspec.json.Decoder(_Chunk)


class SseClient:
    """Client for any OpenAI-compatible server.

    Args:
        session: without a limit of connections, else the limit becomes the measured server's.
        url: the server's root.
        clock: seconds after the start of the run.
    """

    def __init__(
        self, session: aiohttp.ClientSession, url: str, model: str | None, clock: Callable[[], float]
    ) -> None:
        self._session = session
        self._url = f"{url}/v1"
        self._model = model
        self._clock = clock

    async def generate(self, prompt: Prompt, max_tokens: int, record: Record) -> None:
        """See `Client.generate`."""
        fields = body(self._model, prompt, max_tokens) | {
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        url = f"{self._url}/{'chat/' if isinstance(prompt, tuple) else ''}completions"
        record.sent_s = self._clock()
        try:
            async with self._session.post(
                url, data=msgspec.json.encode(fields), headers=_HEADERS
            ) as response:
                await self._read(response, record)
        except aiohttp.ClientConnectorError as error:
            record.fail("connect", describe(error))
        except (aiohttp.ClientError, OSError) as error:
            record.fail("disconnected", describe(error))
        except msgspec.DecodeError as error:
            record.fail("bad_frame", describe(error))

    async def _read(self, response: aiohttp.ClientResponse, record: Record) -> None:
        if response.status != 200:
            record.fail(f"http_{response.status}", await _error_message(response))
            return
        answer = _Answer(record)
        splitter = EventSplitter()
        async for piece in response.content.iter_any():
            now_s = self._clock()
            for data in splitter.feed(piece):
                answer.event(data, now_s)
        answer.end()


class _Answer:
    """One stream's events, in order."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._finish_reason: str | None = None
        self._is_done = False

    def event(self, data: bytes, now_s: float) -> None:
        """Raises msgspec.DecodeError if `data` is not a chunk."""
        if self._is_done:
            return
        if data == b"[DONE]":
            self._is_done = True
            return
        chunk = _chunks.decode(data)
        if chunk.error is not None:
            self._record.fail("error_event", chunk.error.message)
        if chunk.usage is not None:
            self._record.usage(chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
        for choice in chunk.choices:
            self._choice(choice, now_s)

    def end(self) -> None:
        """The connection ended in order; was the answer whole?"""
        if not self._is_done or self._finish_reason is None:
            missing = "[DONE]" if self._finish_reason is not None else "finish_reason"
            self._record.fail("unterminated", f"the stream ended without {missing}")
        else:
            finish(self._record, self._finish_reason)

    def _choice(self, choice: _Choice, now_s: float) -> None:
        delta = choice.delta or _Delta()
        is_answer = bool(choice.text or delta.content)
        if is_answer or delta.reasoning_content or delta.reasoning:
            self._record.chunk(now_s, 0, is_answer=is_answer)
        if choice.finish_reason is not None:
            self._finish_reason = choice.finish_reason


async def _error_message(response: aiohttp.ClientResponse) -> str:
    """The server's error in its own words, else the start of its body."""
    content = await response.read()
    try:
        error = msgspec.json.decode(content, type=_Chunk).error
    except msgspec.DecodeError:
        error = None
    return error.message if error is not None else content[:200].decode("utf-8", "replace")
