"""A conversation over the server's websocket: one connection an answer, so that there is none to lose.

Knows the frames of /v1/stream (docs/websocket.md); knows no terminal.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import msgspec

from pipeline.errors import RequestError, StagelineError

CANCEL_TIMEOUT_S = 2.0
ID = "chat"


class Failure(msgspec.Struct):
    """The error object, the same as HTTP's."""

    message: str
    param: str | None = None
    code: str | None = None


class Frame(msgspec.Struct):
    """What the server sends; each type sets some of the fields."""

    type: str
    text: str = ""
    finish_reason: str = "stop"
    error: Failure | None = None


class Conversation:
    """The messages so far. `ask` adds the prompt and its answer; a refused prompt leaves no trace."""

    def __init__(self, url: str, system: str | None, sampling: Mapping[str, int | float]) -> None:
        self._url = url.rstrip("/")
        self._system = [{"role": "system", "content": system}] if system else []
        self._sampling = dict(sampling)
        self._messages = list(self._system)

    def clear(self) -> None:
        self._messages = list(self._system)

    def ask(self, prompt: str, on_text: Callable[[str], None]) -> str:
        """Send a prompt and call `on_text` as the answer comes; Ctrl-C cancels the answer.

        Returns the finish reason. Raises RequestError if the server refuses the request, StagelineError
        if it cannot be reached or goes away.
        """
        messages = [*self._messages, {"role": "user", "content": prompt}]
        pieces: list[str] = []

        def take(text: str) -> None:
            pieces.append(text)
            on_text(text)

        with asyncio.Runner() as runner:
            finish_reason = runner.run(self._exchange(messages, take))
        self._messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]
        return finish_reason

    async def _exchange(self, messages: list[dict[str, str]], take: Callable[[str], None]) -> str:
        request: dict[str, Any] = {"type": "generate", "id": ID, "messages": messages} | self._sampling
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(f"{self._url}/v1/stream", max_msg_size=0) as socket,
            ):
                return await self._generate(socket, request, take)
        except aiohttp.WSServerHandshakeError as error:
            raise StagelineError(f"{self._url} opens no stream: it answered {error.status}") from error
        except (aiohttp.ClientError, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StagelineError(
                f"no server at {self._url}: {reason}. Start one with `stageline serve`."
            ) from error

    async def _generate(
        self, socket: aiohttp.ClientWebSocketResponse, request: dict[str, Any], take: Callable[[str], None]
    ) -> str:
        await socket.send_json(request)
        try:
            return await self._read(socket, take)
        except asyncio.CancelledError:  # Ctrl-C, by asyncio.Runner: ends the answer, not the program
            await socket.send_json({"type": "cancel", "id": ID})
            with contextlib.suppress(TimeoutError, StagelineError):  # closing the socket cancels too
                async with asyncio.timeout(CANCEL_TIMEOUT_S):
                    await self._read(socket, take)
            return "cancelled"

    async def _read(self, socket: aiohttp.ClientWebSocketResponse, take: Callable[[str], None]) -> str:
        async for message in socket:
            if message.type is aiohttp.WSMsgType.ERROR:
                break
            frame = msgspec.json.decode(message.data, type=Frame)
            if frame.type == "delta":
                take(frame.text)
            elif frame.type == "done":
                return frame.finish_reason
            elif frame.type == "error" and frame.error is not None:
                error = frame.error
                raise RequestError(error.message, param=error.param, code=error.code)
        raise StagelineError(f"{self._url} went away in the middle of the answer (code {socket.close_code})")
