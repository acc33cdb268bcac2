"""What is said when another one takes over, with other options or after a batch that was taken back."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from pipeline.core.text_state import FilteredText, FilterState
from pipeline.errors import RequestError
from pipeline.messages import (
    Cancel,
    FinishReason,
    Open,
    SampledBatch,
    SpelledLogprobs,
    Started,
    StepHandle,
    TextBatch,
    TokenCall,
    TokenLogprob,
)
from pipeline.runtime.hold import Hold
from pipeline.runtime.stage import NoOptions, NoState
from pipeline.stage_api.testing import sample_messages
from pipeline.stages.filter import Filter, FilterOptions, FilterRule
from pipeline.stages.ingress import Ingress
from pipeline.stages.sample import Sample
from pipeline.stages.stream import Stream, StreamOptions
from pipeline.stages.tokenize import Tokenize, TokenizeOptions
from tests.moving import Fate, Place
from tests.text_world import Sink, World
from tests.unit.stages.stream_world import MS, StreamWorld, texts

NONE, STOP, LENGTH, CANCELLED, ERROR, FILTERED = FinishReason


# Filter ----------------------------------------------------------------------------------------------


def filtered(first: FilterOptions, second: FilterOptions, *parts: str, moved_after: int) -> tuple[str, int]:
    """What is said of one request whose text comes in parts, and how it ends."""

    async def main() -> tuple[str, int]:
        world = World(Filter, first)
        place = Place(world.stage)
        said, reason = "", NONE.value
        for index, part in enumerate((*parts, "")):
            if index == moved_after:
                await place.move(options=second)
            finish = LENGTH if index == len(parts) else NONE
            started = [Started(1, 1, (), tenant="gold")] if index == 0 else []
            await place.handle([texts((1, part, 1, finish), started=started)])
            for batch in await world.sent(TextBatch):
                said += "".join(batch.texts)
                reason = max([reason, *batch.finish_reasons])
        return said, reason

    return asyncio.run(main())


def rules(*terms: str, action: Any = "redact", **rest: Any) -> FilterOptions:
    return FilterOptions(rules=(FilterRule(terms=terms, action=action, replacement="*", **rest),))


PLAIN = FilterOptions()


@pytest.mark.parametrize(
    ("first", "second", "parts", "moved_after", "said"),
    [
        (rules("bad"), PLAIN, ("so ba", "d"), 1, "so bad"),  # what was held is a match no more
        (PLAIN, rules("bad"), ("so ba", "d bad"), 1, "so bad *"),  # what has left is not looked at again
        (rules("bad"), rules("bat"), ("ba", "t bad"), 1, "* bad"),  # held text is judged by the new rules
        (rules("bad"), rules("bad"), ("ba", "d"), 1, "*"),
        (PLAIN, rules("do", whole_words=True), ("un", "do do "), 1, "undo * "),  # a word that has begun
        (rules("a\u200bd"), PLAIN, ("a\u200b", "d"), 1, "ad"),
        (rules("bad"), rules("bad", tenants=("iron",)), ("ba", "d"), 1, "bad"),  # rules are a tenant's
        (rules("bad", tenants=("iron",)), rules("bad", tenants=("gold",)), ("ba", "d bad"), 1, "bad *"),
    ],
)
def test_the_newcomers_rules_hold_from_what_is_held_on(
    first: FilterOptions, second: FilterOptions, parts: tuple[str, ...], moved_after: int, said: str
) -> None:
    assert filtered(first, second, *parts, moved_after=moved_after) == (said, LENGTH)


def test_what_a_rule_has_stopped_stays_so() -> None:
    stops = rules("bad", action="stop")
    assert filtered(stops, PLAIN, "so bad", " x", "y", moved_after=1) == ("so ", FILTERED)


def test_a_new_cleaner_cleans_what_is_held() -> None:
    async def main() -> None:
        world = World(Filter, PLAIN)
        world.stage.import_state(FilterState((FilteredText(1, "", "", "a\u200bb"),)))
        await world.stage.handle([texts((1, "c", 1, LENGTH))])
        (batch,) = await world.sent(TextBatch)
        assert batch.texts == ["abc"]

    asyncio.run(main())


def test_logprobs_of_a_request_go_by_the_newcomers_rules() -> None:
    async def main() -> list[list[int]]:
        world = World(Filter, PLAIN)
        place = Place(world.stage)
        entries = SpelledLogprobs([1], [TokenLogprob(b"a", -1.0, [])])
        step = texts((1, "a", 1, NONE), logprobs=entries)
        await place.handle([texts((1, "", 0, NONE), started=[Started(1, 1, ())])])
        await place.handle([step])
        await place.move(options=rules("x"))
        await place.handle([step])
        return [
            [] if each.logprobs is None else each.logprobs.request_ids for each in await world.sent(TextBatch)
        ]

    assert asyncio.run(main()) == [[], [1], []]


# Stream ----------------------------------------------------------------------------------------------


class Awaited(Sink):
    """A client that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._written = asyncio.Event()

    def delta(self, text: str, num_tokens: int) -> None:
        super().delta(text, num_tokens)
        self._written.set()

    async def written(self) -> None:
        """The next delta."""
        self._written.clear()
        await asyncio.wait_for(self._written.wait(), 5)


def in_streams(body: Callable[[StreamWorld, Place], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        world = StreamWorld(**options)
        place = Place(world.stage)
        await world.open()
        await body(world, place)
        await place.stage.stop()

    asyncio.run(main())


async def pass_time(world: StreamWorld, place: Place, ms: float) -> None:
    world.clock.advance(int(ms * MS))
    place.stage._on_timer()  # type: ignore[attr-defined]


def test_text_is_merged_by_the_newcomers_rule() -> None:
    async def body(world: StreamWorld, place: Place) -> None:
        await place.handle([texts((1, "a", 1, NONE))])
        await place.move(options=StreamOptions(flush_tokens=2, flush_ms=500))
        for text in "bcde":
            await place.handle([texts((1, text, 1, NONE))])
        assert world.sink.deltas == [("a", 1), ("bc", 2), ("de", 2)]

    in_streams(body, flush_tokens=10, flush_ms=500)


def test_what_a_client_asked_for_holds_with_any_rule() -> None:
    async def body(world: StreamWorld, place: Place) -> None:
        sink = Sink()
        await place.handle([Open(2, sink, 1, flush_tokens=3)])
        await place.handle([texts((2, "a", 1, NONE))])
        await place.move(options=StreamOptions(flush_tokens=1, flush_ms=500))
        for text in "bcd":
            await place.handle([texts((2, text, 1, NONE))])
        assert sink.deltas == [("a", 1), ("bcd", 3)]

    in_streams(body, flush_tokens=10, flush_ms=500)


def test_a_timer_goes_on_with_who_took_over_and_with_nobody_else() -> None:
    async def main() -> None:
        world = World(Stream, StreamOptions(flush_tokens=99, flush_ms=20))
        place, sink = Place(world.stage), Awaited()
        await place.handle([Open(1, sink, world.stage.ctx.clock())])
        await place.handle([texts((1, "a", 1, NONE)), texts((1, "b", 1, NONE))])
        for _ in range(3):
            await place.move()
        assert sink.deltas == [("a", 1)]
        await sink.written()
        assert sink.deltas == [("a", 1), ("b", 1)]
        await place.stage.stop()
        assert isinstance(sink.ending, RequestError), "one ending, of who serves"

    asyncio.run(main())


def test_a_timer_waits_for_a_batch_on_trial() -> None:
    """Whoever fails, what his timer wrote meanwhile would be written again."""

    async def body(world: StreamWorld, place: Place) -> None:
        hold, sink = Hold(), Awaited()
        await place.handle([Open(2, sink, 1), texts((2, "a", 1, NONE)), texts((2, "b", 1, NONE))])
        await place.move(replace(world.stage.ctx, hold=hold))
        hold.begin()
        await pass_time(world, place, 100)
        await asyncio.sleep(0.01)
        assert sink.deltas == [("a", 1)]
        await hold.commit()
        await sink.written()
        assert sink.deltas == [("a", 1), ("b", 1)]

    in_streams(body, flush_tokens=99, flush_ms=20)


def test_who_was_given_up_stays_so_on_trial() -> None:
    async def body(world: StreamWorld, place: Place) -> None:
        world.sink.buffered = 2000
        await place.handle([texts((1, "a", 1, NONE))])
        await pass_time(world, place, 10)
        await pass_time(world, place, 1000)
        assert isinstance(world.sink.ending, RequestError)
        await place.handle([texts((1, "b", 1, NONE))], Fate.TRY)
        assert place.stage.gauges() == {"cut_off_requests": 1}
        world.clock.advance(100 * MS)
        await place.handle([texts((1, "c", 1, NONE))], Fate.TRY)
        assert world.telemetry.itl.count == 0, "nobody was written to"
        await place.handle([texts((1, "", 0, CANCELLED))], Fate.TRY)
        assert place.stage.gauges() == {"cut_off_requests": 0}
        assert await world.sent(Cancel) == [Cancel(1, CANCELLED)]

    in_streams(body, client_buffer_bytes=1024, slow_client_s=0.5, flush_ms=5.0)


def test_a_first_token_that_waited_for_its_client_is_timed_all_the_same() -> None:
    async def body(world: StreamWorld, place: Place) -> None:
        world.sink.buffered = 2000
        world.clock.advance(3 * MS)
        await place.handle([texts((1, "a", 1, NONE), taken_ns=5, sent_ns=world.clock())])
        await place.move()
        world.sink.buffered = 0
        await pass_time(world, place, 40)
        await place.handle([texts((1, "", 0, LENGTH))])
        timings = world.sink.completion.timings
        assert timings.ttft_ns == 43 * MS
        assert timings.ttft_segments_ns[-1] == 40 * MS

    in_streams(body, client_buffer_bytes=1024)


# Those that know nothing -----------------------------------------------------------------------------


class Reply:
    def __init__(self) -> None:
        self.got: list[object] = []

    def tokens(self, value: list[int] | str) -> None:
        self.got.append(value)

    def error(self, error: RequestError) -> None:
        self.got.append(error.code)


def test_a_call_for_tokens_is_answered_once_whoever_failed() -> None:
    async def main() -> None:
        world = World(Tokenize, TokenizeOptions())
        await world.stage.start()
        place, reply = Place(world.stage), Reply()
        for fate in Fate:
            await place.handle([TokenCall(reply, prompt=fate)], fate)
            await place.handle([TokenCall(reply, token_ids=[999])], fate)
        await place.stage.stop()
        assert reply.got[::2] == [list(fate.encode()) for fate in Fate]
        assert all(isinstance(each, str | None) for each in reply.got[1::2])
        assert len(reply.got) == 2 * len(Fate)

    asyncio.run(main())


def test_a_step_is_sampled_once_whoever_failed() -> None:
    async def main() -> None:
        world = World(Sample, NoOptions())
        place = Place(world.stage)
        steps = list(sample_messages(StepHandle, len(Fate)))
        for step, fate in zip(steps, Fate, strict=True):
            await place.handle([step], fate)
        sampled = await world.sent(SampledBatch)
        assert [(each.step_id, each.token_ids) for each in sampled] == [
            (step.plan.step_id, step.token_ids_sync()) for step in steps
        ]

    asyncio.run(main())


def test_who_knows_nothing_and_who_holds_connections() -> None:
    assert Tokenize.State is Sample.State is NoState
    assert Ingress.State is None
