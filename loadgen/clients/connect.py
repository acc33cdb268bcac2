"""From a URL to a client of the model behind it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import msgspec

from loadgen.clients.api import Client, describe
from loadgen.clients.dial import Dialer
from loadgen.clients.sse import SseClient
from loadgen.clients.websocket import WebsocketClient
from loadgen.errors import ServerError, UsageError

PROTOCOLS = ("ws", "sse")
_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


class Target(msgspec.Struct, frozen=True):
    """What is measured."""

    url: str
    """The server's root, http or https."""
    protocol: str
    model: str | None
    """None: the one the server names."""
    num_sockets: int = 8
    asks_timings: bool = False
    """Ask this project's server where each request's time went; others may refuse the field."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def target(url: str, protocol: str | None, model: str | None, num_sockets: int) -> Target:
    """`url` may be http(s) or ws(s), with or without /v1; its scheme is the default protocol.

    Raises:
        UsageError: it is none of these.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in _SCHEMES or not parts.netloc:
        raise UsageError(f"--url {url}: expected http://HOST:PORT or ws://HOST:PORT")
    path = parts.path.rstrip("/").removesuffix("/v1/stream").removesuffix("/v1")
    root = urlunsplit((_SCHEMES[parts.scheme], parts.netloc, path, "", ""))
    return Target(root, protocol or ("ws" if parts.scheme.startswith("ws") else "sse"), model, num_sockets)


@asynccontextmanager
async def connect(target: Target, clock: Callable[[], float]) -> AsyncIterator[tuple[Client, str | None]]:
    """A client of `target` and the name of the model behind it.

    Raises:
        ServerError: it cannot be reached, or serves another model.
    """
    model = await _model(target)
    dialer = Dialer(target.url)
    if target.protocol == "sse":
        sse = SseClient(dialer, model, clock, asks_timings=target.asks_timings)
        try:
            yield sse, model
        finally:
            sse.close()
    else:
        websocket = WebsocketClient(dialer, model, clock, asks_timings=target.asks_timings)
        try:
            await websocket.open(target.num_sockets)
            yield websocket, model
        finally:
            await websocket.close()


async def _model(target: Target) -> str | None:
    """The model to name in requests, after asking the server which it has."""
    timeout = aiohttp.ClientTimeout(total=60, sock_connect=10)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{target.url}/v1/models") as response,
        ):
            content = await response.read()
    except (aiohttp.ClientError, OSError) as error:
        raise ServerError(f"cannot reach {target.url}: {describe(error)}; is the server running?") from error
    if response.status != 200:
        if target.model is not None and response.status == 404:
            return target.model
        raise ServerError(
            f"{target.url}/v1/models answered {response.status}; give --model if it has no list"
        )
    try:
        served = [model.id for model in msgspec.json.decode(content, type=_Models).data]
    except msgspec.DecodeError as error:
        raise ServerError(f"{target.url}/v1/models is no OpenAI model list: {error}") from error
    return _choose(target, served)


def _choose(target: Target, served: list[str]) -> str:
    if target.model is None and len(served) == 1:
        return served[0]
    if target.model in served:
        return str(target.model)
    wanted = "several models" if target.model is None else f"no model {target.model!r}"
    raise ServerError(f"{target.url} serves {wanted}; --model can be: {', '.join(served) or 'nothing'}")
