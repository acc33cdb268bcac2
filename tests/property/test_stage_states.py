"""Whoever serves in a stage's place, replaced at any time, now and then or always: nobody outside can tell.

The text side here; for the scheduler see test_schedule_state.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.checkpoint.fake import byte_card
from pipeline.core.detok import Vocabulary
from pipeline.core.text_state import DetokenizeState, FilterState
from pipeline.messages import (
    NO_TOKEN,
    Cancel,
    FinishReason,
    Grant,
    Open,
    Pause,
    Rejected,
    Resume,
    Started,
    TextBatch,
    TokenBatch,
)
from pipeline.runtime.stage import NoOptions
from pipeline.runtime.testing import ManualClock
from pipeline.stages.detokenize import Detokenize
from pipeline.stages.filter import Filter, FilterOptions, FilterRule
from pipeline.stages.stream import Stream, StreamOptions
from tests.moving import Fate, Place, hand_over
from tests.naive_detokenize import NaiveDetokenize
from tests.text_world import Sink, World, byte_fallback_tokenizer, tokens
from tests.unit.stages.stream_world import MS, texts

NONE, STOP, LENGTH, CANCELLED, ERROR, _ = FinishReason
BYTES, FALLBACK = byte_card().new_tokenizer(), byte_fallback_tokenizer()
fates = st.lists(st.sampled_from(Fate), max_size=16)


def fate_at(fates: Sequence[Fate], index: int) -> Fate:
    return fates[index % len(fates)] if fates else Fate.GO


# Detokenize ------------------------------------------------------------------------------------------


class Life(msgspec.Struct, frozen=True):
    """One request: how it starts, the tokens that are sampled for it, and how it ends."""

    started: Started
    token_ids: list[int]
    reason: FinishReason
    begins: int
    """The step of its first row."""


def lives(token_ids: st.SearchStrategy[int]) -> st.SearchStrategy[list[Life]]:
    started = st.builds(
        Started,
        st.just(0),
        st.just(1),
        st.sampled_from([(), (), ("#",), ("ab#", "é"), ("b", "bb#")]),
        min_tokens=st.sampled_from([0, 0, 2, 5]),
        includes_stop=st.booleans(),
        skips_special=st.booleans(),
        unstopped=st.sampled_from([None, ("<a>", "</a>", False), ("<a>", "</a>", True)]),
    )
    ends = st.sampled_from([STOP, LENGTH, CANCELLED])
    life = st.builds(Life, started, st.lists(token_ids, min_size=1, max_size=14), ends, st.integers(0, 5))
    return st.lists(life, min_size=1, max_size=4)


def steps_of(requests: list[Life]) -> list[TokenBatch]:
    last = max(life.begins + len(life.token_ids) for life in requests)
    return [_step(requests, step) for step in range(last + 1)]


def _step(requests: list[Life], step: int) -> TokenBatch:
    rows, started = [], []
    for request_id, life in enumerate(requests):
        index, size = step - life.begins, len(life.token_ids)
        if index == 0:
            started.append(msgspec.structs.replace(life.started, request_id=request_id))
        if 0 <= index < size:
            is_last = index == size - 1 and life.reason is LENGTH
            rows.append((request_id, life.token_ids[index], life.reason if is_last else NONE))
        elif index == size and life.reason is not LENGTH:
            rows.append((request_id, 0 if life.reason is STOP else NO_TOKEN, life.reason))
    return tokens(*rows, started=tuple(started), step_id=step)


class DetokenizeBytes(Detokenize):
    """Its tables are made once, and its state goes over a wire each time: it is plain data."""

    vocabulary = Vocabulary(BYTES, BYTES.get_vocab_size())

    async def start(self) -> None:
        self._vocabulary = self.vocabulary

    def import_state(self, state: DetokenizeState) -> None:
        super().import_state(msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=DetokenizeState))


class DetokenizeFallback(DetokenizeBytes):
    vocabulary = Vocabulary(FALLBACK, FALLBACK.get_vocab_size())


async def detokenized(
    kind: type[Detokenize], steps: list[TokenBatch], fates: Sequence[Fate]
) -> tuple[list[TextBatch], list[Cancel]]:
    world = World(kind, NoOptions(), clock=ManualClock())
    await world.stage.start()
    place = Place(world.stage)
    for index, step in enumerate(steps):
        await place.handle([step], fate_at(fates, index))
    assert place.stage.num_live == 0  # type: ignore[attr-defined]
    assert place.stage.export_state() == DetokenizeState()
    return await world.sent(TextBatch), await world.sent(Cancel)


def of_bytes(text: str) -> st.SearchStrategy[int]:
    return st.sampled_from(sorted({*text.encode(), 256, 257}))


@settings(max_examples=80, deadline=None)
@given(lives(of_bytes("aab#</a>é漢")), fates)
def test_detokenize(requests: list[Life], fates: list[Fate]) -> None:
    steps = steps_of(requests)
    undisturbed = asyncio.run(detokenized(DetokenizeBytes, steps, ()))
    assert asyncio.run(detokenized(DetokenizeBytes, steps, fates)) == undisturbed


def ids_in(tokenizer: Tokenizer) -> st.SearchStrategy[int]:
    return st.integers(0, tokenizer.get_vocab_size() - 1)


@settings(max_examples=50, deadline=None)
@given(lives(ids_in(FALLBACK)), fates)
def test_detokenize_with_spaces_to_strip(requests: list[Life], fates: list[Fate]) -> None:
    steps = steps_of(requests)
    undisturbed = asyncio.run(detokenized(DetokenizeFallback, steps, ()))
    assert asyncio.run(detokenized(DetokenizeFallback, steps, fates)) == undisturbed


async def passed_on(steps: list[TokenBatch], kinds: Sequence[type[Any]]) -> Any:
    """By these in turn, one a batch: what is said, without the times."""
    world = World(kinds[0], NoOptions(), clock=ManualClock())
    stage = world.stage
    for index, step in enumerate(steps):
        new = kinds[index % len(kinds)](stage.ctx, NoOptions())
        await new.start()
        hand_over(stage, new)
        stage = new
        await stage.handle([step])
    said = [
        (each.request_ids, each.texts, each.num_tokens, each.finish_reasons)
        for each in await world.sent(TextBatch)
    ]
    return said, await world.sent(Cancel)


@settings(max_examples=80, deadline=None)
@given(
    lives(of_bytes("aab#é漢")),
    st.lists(st.sampled_from([DetokenizeBytes, NaiveDetokenize]), min_size=1, max_size=8),
)
def test_one_that_somebody_else_wrote(requests: list[Life], kinds: list[type[Any]]) -> None:
    """It knows nothing of the built-in one but the structs that tell its state."""
    plain = [
        msgspec.structs.replace(life, started=msgspec.structs.replace(life.started, unstopped=None))
        for life in requests
    ]
    steps = steps_of(plain)
    assert asyncio.run(passed_on(steps, kinds)) == asyncio.run(passed_on(steps, [DetokenizeBytes]))


# Filter ----------------------------------------------------------------------------------------------

RULES = (
    FilterRule(pattern=r"ba+d", replacement="*"),
    FilterRule(terms=("no",), action="stop", whole_words=True),
    FilterRule(terms=("ab",), tenants=("gold",), replacement=""),
)


class FilterByWire(Filter):
    def import_state(self, state: FilterState) -> None:
        super().import_state(msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=FilterState))


parts = ["b", "a", "ad", "aad", "bad", "n", "o", "no", "no ", " ", "x", "\u200b", ""]
pieces = st.lists(st.sampled_from(parts), min_size=1, max_size=8)
told = st.lists(st.tuples(st.sampled_from(["", "gold"]), pieces), min_size=1, max_size=3)


async def filtered(
    steps: list[TextBatch], options: FilterOptions, fates: Sequence[Fate]
) -> tuple[list[TextBatch], list[Cancel]]:
    world = World(FilterByWire, options, clock=ManualClock())
    place = Place(world.stage)
    for index, step in enumerate(steps):
        await place.handle([step], fate_at(fates, index))
    assert place.stage.num_live == 0  # type: ignore[attr-defined]
    return await world.sent(TextBatch), await world.sent(Cancel)


def text_steps(told: list[tuple[str, list[str]]]) -> list[TextBatch]:
    last = max(len(each) for _, each in told)
    started = [Started(request_id, 1, (), tenant=tenant) for request_id, (tenant, _) in enumerate(told)]
    steps = [
        texts(*((k, each[at], 1, NONE) for k, (_, each) in enumerate(told) if at < len(each)))
        for at in range(last)
    ]
    ends = texts(*((k, "", 0, LENGTH) for k in range(len(told))))
    return [msgspec.structs.replace(steps[0], started=started), *steps[1:], ends]


@settings(max_examples=80, deadline=None)
@given(told, st.booleans(), st.sampled_from([(), RULES]), fates)
def test_filter(
    told: list[tuple[str, list[str]]], clean: bool, rules: tuple[FilterRule, ...], fates: list[Fate]
) -> None:
    steps, options = text_steps(told), FilterOptions(clean=clean, rules=rules)
    undisturbed = asyncio.run(filtered(steps, options, ()))
    assert asyncio.run(filtered(steps, options, fates)) == undisturbed


# Stream ----------------------------------------------------------------------------------------------

OPTIONS = StreamOptions(
    flush_tokens=3, flush_ms=10, client_buffer_bytes=1024, slow_client_s=0.05, max_paused_s=0.08
)
REFUSED = ("too long", 400, None, None)

opened = st.builds(
    lambda credits, flush: {"credits": credits, "flush_tokens": flush},
    st.sampled_from([None, None, 1, 3]),
    st.sampled_from([0, 0, 5]),
)
events = st.one_of(
    st.tuples(st.just("rows"), st.lists(st.sampled_from(["", "a", "é", "x" * 800]), min_size=3, max_size=3)),
    st.tuples(st.just("time"), st.sampled_from([1, 5, 10, 60])),
    st.tuples(st.just("grant"), st.integers(0, 2)),
    st.tuples(st.just("read"), st.integers(0, 2)),
    st.tuples(st.just("reject"), st.integers(0, 2)),
    st.tuples(st.just("end"), st.integers(0, 2)),
)
Event = tuple[str, Any]


class Client(Sink):
    """It reads when told, and remembers what it is told in its order."""

    def __init__(self) -> None:
        super().__init__(reads=False)


class Clients:
    """A streamer with three of them."""

    def __init__(self, opened: list[dict[str, Any]]) -> None:
        self.clock = ManualClock(1000 * MS)
        self.world = World(Stream, OPTIONS, clock=self.clock)
        self.place = Place(self.world.stage)
        self.sinks = [Client() for _ in opened]
        self.opens = [
            Open(request_id, sink, self.clock.now_ns, **asked)
            for request_id, (sink, asked) in enumerate(zip(self.sinks, opened, strict=True))
        ]
        self.step_id = 0

    async def happen(self, event: Event, fate: Fate) -> None:
        kind, value = event
        if kind == "rows":
            self.step_id += 1
            rows = [(request_id, text, 1, NONE) for request_id, text in enumerate(value)]
            await self.place.handle([texts(*rows, taken_ns=self.step_id)], fate)
        elif kind == "grant":
            await self.place.handle([Grant(value, 2)], fate)
        elif kind == "end":
            await self.place.handle([texts((value, "!", 1, STOP))], fate)
        elif kind == "reject":
            await self.place.handle([Rejected(value, *REFUSED)], fate)
        elif kind == "read":
            self.sinks[value].buffered = 0
        else:
            if fate is not Fate.GO:
                await self.place.move()
            self.clock.advance(value * MS)
            self.place.stage._on_timer()  # type: ignore[attr-defined]

    async def end(self) -> None:
        """All are cancelled, which the slowest gets."""
        await self.happen(("rows", ["."] * len(self.sinks)), Fate.GO)
        ends = texts(*((k, "", 0, CANCELLED) for k in range(len(self.sinks))))
        await self.place.handle([ends], Fate.GO)
        for sink in self.sinks:
            sink.buffered = 0
        await self.happen(("time", 100), Fate.GO)
        assert self.place.stage.num_live == 0  # type: ignore[attr-defined]
        await self.place.stage.stop()

    async def heard(self) -> list[Any]:
        """All that the outside got: clients, scheduler, journal, metrics."""
        telemetry = self.world.telemetry
        clients = [(sink.deltas, [_plain(ending) for ending in sink.endings]) for sink in self.sinks]
        sent = [await self.world.sent(kind) for kind in (Pause, Resume, Cancel)]
        itl = (telemetry.itl.count, telemetry.itl.total)
        return [clients, sent, telemetry.journal.requests(), itl]


def _plain(ending: object) -> object:
    return ending if isinstance(ending, msgspec.Struct) else repr(ending)


async def streamed(opened: list[dict[str, Any]], events: list[Event], fates: Sequence[Fate]) -> list[Any]:
    clients = Clients(opened)
    await clients.place.handle(clients.opens, fate_at(fates, len(events)))
    for index, event in enumerate(events):
        await clients.happen(event, fate_at(fates, index))
    await clients.end()
    return await clients.heard()


@settings(max_examples=80, deadline=None)
@given(st.lists(opened, min_size=3, max_size=3), st.lists(events, min_size=1, max_size=14), fates)
def test_stream(opened: list[dict[str, Any]], events: list[Event], fates: list[Fate]) -> None:
    undisturbed = asyncio.run(streamed(opened, events, ()))
    assert asyncio.run(streamed(opened, events, fates)) == undisturbed


# What all have in common -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DetokenizeBytes, FilterByWire, Stream])
def test_who_is_told_forgets_what_he_knew(kind: Any) -> None:
    async def main() -> None:
        options: dict[Any, Any] = {
            DetokenizeBytes: NoOptions(),
            FilterByWire: FilterOptions(),
            Stream: OPTIONS,
        }
        firsts: dict[Any, Any] = {
            DetokenizeBytes: tokens((7, 0xC4, NONE), started=(Started(7, 1, ()),)),
            FilterByWire: texts((7, "a", 1, NONE), started=[Started(7, 1, ())]),
            Stream: Open(7, Sink(), 1),
        }
        world, other = (World(kind, options.get(kind, NoOptions())) for _ in range(2))
        for each in (world, other):
            await each.stage.start()
        await world.stage.handle([firsts[kind]])
        state = world.stage.export_state()
        assert world.stage.num_live == 1
        assert world.stage.export_state() != kind.State()
        await other.stage.handle([firsts[kind]])
        other.stage.import_state(kind.State())
        assert other.stage.num_live == 0 and other.stage.export_state() == kind.State()
        other.stage.import_state(state)
        assert other.stage.num_live == 1
        for each in (world, other):
            each.stage.import_state(kind.State())
            await each.stage.stop()

    asyncio.run(main())
