"""The admin port and the prefix cache: its events as they happen (docs/kv-events.md), and its pins."""

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from pipeline.assemble import Pipeline
from pipeline.core.kv_events import Event, KvEvents, token_ids_of
from pipeline.core.wire.terms import tenant_of_user
from pipeline.errors import RequestError
from pipeline.messages import ClearPins
from pipeline.stages.ingress.replies import json_bytes
from pipeline.telemetry import KvFeed

MAX_SUBSCRIBERS = 32
PING_S = 10.0
"""Silence after which a comment says that the link is alive."""
BATCH = 128
"""Events that are written at once: the loop is free in between."""

_encode = msgspec.json.Encoder().encode


class KvApi:
    """Handlers. Whoever is slow is behind in the ring, and past it is given all anew: nothing piles up."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._is_closed = False
        self._changed: set[asyncio.Event] = set()
        """One a subscriber."""

    def close(self) -> None:
        """Every stream ends."""
        self._is_closed = True
        for changed in self._changed:
            changed.set()

    async def clear_pins(self, request: web.Request) -> web.Response:
        """202: nothing is pinned from the next plan on."""
        if not getattr(self._pipeline.stages["schedule"][0].options, "max_pinned_blocks", 0):
            raise RequestError(
                "Nothing can be pinned: stages.schedule.options.max_pinned_blocks is 0.",
                status=404,
                code="pinning_off",
            )
        self._pipeline.inboxes["schedule"].post(ClearPins())
        return web.Response(status=202)

    async def root(self, request: web.Request) -> web.Response:
        """What the chains of the caller begin at: by his Authorization header or `user`, and `cache_salt`.

        401 as at the door, where the server has keys.
        """
        feed, query = self._feed(), request.query
        ingress: Any = self._pipeline.stages["ingress"][0]
        key: str = ingress.tenant_of(request.headers.get("Authorization"))
        tenant = key or tenant_of_user(query.get("user", ""))
        return json_bytes(_encode({"root": feed.root(tenant, query.get("cache_salt", ""))}))

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: `hello`, then all from number `from` on, or else all that is held."""
        feed = self._feed()
        seq = _wanted(request, feed.start)
        if len(self._changed) >= MAX_SUBSCRIBERS:
            raise RequestError(
                f"{MAX_SUBSCRIBERS} subscribers are connected.", status=503, code="too_many_subscribers"
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        changed = asyncio.Event()
        self._changed.add(changed)
        feed.events.subscribe(changed.set)
        try:
            await response.prepare(request)
            await response.write(_hello(feed))
            await self._tell(response, feed, changed, seq)
        finally:
            feed.events.unsubscribe(changed.set)
            self._changed.remove(changed)
        return response

    async def _tell(
        self, response: web.StreamResponse, feed: KvFeed, changed: asyncio.Event, seq: int | None
    ) -> None:
        while not self._is_closed:
            changed.clear()
            told = None if seq is None else feed.events.since(seq)
            is_whole = told is None
            if told is None:
                await response.write(_gap(feed.events, seq) if seq is not None else b"")
                told = feed.events.snapshot()
            seq = told[-1].seq + 1 if told else seq
            for start in range(0, len(told), BATCH):
                last = told[-1] if is_whole else None
                await response.write(
                    b"".join(_line(feed, each, last) for each in told[start : start + BATCH])
                )
                await asyncio.sleep(0)
            await _wait(response, changed)

    def _feed(self) -> KvFeed:
        feed = self._pipeline.telemetry.kv_events
        if feed is None:
            raise RequestError(
                "No events are told: stages.schedule.options.kv_events is 0, or prefix_cache is off.",
                status=404,
                code="kv_events_off",
            )
        return feed


async def _wait(response: web.StreamResponse, changed: asyncio.Event) -> None:
    while not changed.is_set():
        try:
            await asyncio.wait_for(changed.wait(), PING_S)
        except TimeoutError:
            await response.write(b": ping\n\n")


def _wanted(request: web.Request, start: str) -> int | None:
    """The first event that is wanted; None: whatever is held, then all that comes.

    `from=SEQ`, or the id of the latest event that was seen, as a browser's EventSource gives it when it comes
    back. A number of another start of the server is none of ours: it is 0, which is never kept.
    """
    if seen := request.headers.get("Last-Event-ID"):
        of_start, _, number = seen.rpartition("-")
        return _number(number) + 1 if of_start == start else 0
    if (wanted := request.query.get("from")) is None:
        return None
    return 0 if request.query.get("start", start) != start else _number(wanted)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise RequestError(f"'from' must be a number of an event, but is {text[:40]!r}.", param="from")
    return int(text)


def _hello(feed: KvFeed) -> bytes:
    about = {
        "start": feed.start,
        "model": feed.model,
        "block_size": feed.prefix_hash.block_size,
        "root": feed.root("", ""),
        "first_seq": feed.events.first_seq,
        "last_seq": feed.events.last_seq,
    }
    return _event(b"hello", about)


def _gap(events: KvEvents, wanted: int) -> bytes:
    return _event(b"gap", {"from": wanted, "first_seq": events.first_seq, "last_seq": events.last_seq})


def _line(feed: KvFeed, event: Event, last_of_all: Event | None) -> bytes:
    """`last_of_all`: of a snapshot, whose events have an id only where it is complete."""
    data: dict[str, object] = {"seq": event.seq}
    if event.link is not None:
        data["key"] = event.link.key.hex()
        if event.kind == "stored":
            data |= {"parent": feed.events.parent_of(event), "token_ids": token_ids_of(event.link)}
    has_id = last_of_all is None or event is last_of_all
    return (b"id: %b-%d\n" % (feed.start.encode(), event.seq) if has_id else b"") + _event(
        event.kind.encode(), data
    )


def _event(name: bytes, data: dict[str, object]) -> bytes:
    """WHATWG HTML 9.2; JSON has no line breaks of its own."""
    return b"event: %b\ndata: %b\n\n" % (name, _encode(data))
