import asyncio

import pytest

from pipeline.errors import RequestError
from pipeline.messages import (
    SEGMENTS,
    FinishReason,
    Open,
    Rejected,
    SequenceTimes,
    Started,
)
from pipeline.runtime.trace import Point
from pipeline.stages.stream import Stream, StreamOptions
from tests.text_world import Sink, World
from tests.unit.stages.stream_world import MS, StreamWorld, in_world, texts

NONE, STOP, LENGTH, CANCELLED, ERROR, _ = FinishReason


# Merging ---------------------------------------------------------------------------------------------


def test_the_first_token_goes_at_once_and_the_next_wait() -> None:
    async def body(world: StreamWorld) -> None:
        await world.rows((1, "a", 1, NONE))
        await world.rows((1, "b", 1, NONE))
        await world.rows((1, "c", 1, NONE))
        assert world.sink.deltas == [("a", 1)]
        await world.pass_time(19)
        assert world.sink.deltas == [("a", 1)]
        await world.pass_time(1)
        assert world.sink.deltas == [("a", 1), ("bc", 2)]

    in_world(body)


def test_a_full_batch_goes_at_once() -> None:
    async def body(world: StreamWorld) -> None:
        for text in "abcde":
            await world.rows((1, text, 1, NONE))
        assert world.sink.deltas == [("a", 1), ("bcd", 3)]

    in_world(body, flush_tokens=3)


def test_a_slow_stream_never_waits() -> None:
    async def body(world: StreamWorld) -> None:
        for text in "abc":
            await world.rows((1, text, 1, NONE))
            world.clock.advance(21 * MS)
        assert world.sink.deltas == [("a", 1), ("b", 1), ("c", 1)]

    in_world(body)


def test_tokens_without_text_are_counted_with_the_next_text() -> None:
    async def body(world: StreamWorld) -> None:
        for text in ("", "", "ď"):
            await world.rows((1, text, 1, NONE))
        assert world.sink.deltas == [("ď", 3)]

    in_world(body)


def test_one_timer_however_many_clients() -> None:
    async def main() -> None:
        world = StreamWorld()
        loop, armed = asyncio.get_running_loop(), []
        call_later = loop.call_later
        loop.call_later = lambda *args: armed.append(args) or call_later(*args)  # type: ignore
        sinks = [await world.open(i, Sink()) for i in range(256)]
        await world.rows(*((i, "a", 1, NONE) for i in range(256)))
        for text in "bc":
            await world.rows(*((i, text, 1, NONE) for i in range(256)))
        assert len(armed) == 1
        await world.pass_time(20)
        assert all(sink.deltas == [("a", 1), ("bc", 2)] for sink in sinks)
        await world.stage.stop()

    asyncio.run(main())


def test_the_timer_is_set_for_the_earliest() -> None:
    async def main() -> None:
        world = StreamWorld()
        early, late = await world.open(1, Sink()), await world.open(2, Sink())
        await world.rows((1, "a", 1, NONE))
        world.clock.advance(15 * MS)
        await world.rows((2, "a", 1, NONE))
        await world.rows((2, "b", 1, NONE))  # due in 20 ms
        await world.rows((1, "b", 1, NONE))  # due in 5 ms
        await world.pass_time(5)
        assert (early.text, late.text) == ("ab", "a")
        await world.pass_time(15)
        assert late.text == "ab"
        await world.stage.stop()

    asyncio.run(main())


@pytest.mark.parametrize("row", [(1, "c" * 9, 9, NONE), (1, "c", 1, STOP)])
def test_no_timer_is_left_when_nothing_waits(row: tuple[int, str, int, int]) -> None:
    async def body(world: StreamWorld) -> None:
        await world.rows((1, "a", 1, NONE))
        await world.rows((1, "b", 1, NONE))  # waits
        await world.rows(row)  # takes it along
        assert world.sink.text == "ab" + row[1]
        assert not world.stage._waiting
        await world.pass_time(20)
        assert world.stage._timer is None

    in_world(body, flush_tokens=9)


def test_the_timer_runs_by_itself() -> None:
    async def main() -> None:
        world = World(Stream, StreamOptions(flush_ms=1))
        is_written = asyncio.Event()

        class Waking(Sink):
            def delta(self, text: str, num_tokens: int) -> None:
                super().delta(text, num_tokens)
                if self.text == "ab":
                    is_written.set()

        await world.stage.handle([Open(1, Waking(), 0)])
        await world.stage.handle([texts((1, "a", 1, NONE)), texts((1, "b", 1, NONE))])
        async with asyncio.timeout(5):
            await is_written.wait()
        await world.stage.stop()

    asyncio.run(main())


# Endings ---------------------------------------------------------------------------------------------


def test_the_terminal_row_writes_the_rest_and_ends() -> None:
    async def body(world: StreamWorld) -> None:
        await world.rows((1, "a", 1, NONE), started=[Started(1, 5, ())])
        await world.rows((1, "b", 2, LENGTH))
        assert world.sink.deltas == [("a", 1), ("b", 2)]
        completion = world.sink.completion
        assert completion.finish_reason is LENGTH
        assert (completion.num_prompt_tokens, completion.num_output_tokens) == (5, 3)
        assert world.stage.num_live == 0
        assert world.metric('stageline_requests_total{finish_reason="length"} 1.0')
        await world.rows((1, "late", 1, NONE))
        assert world.sink.text == "ab"

    in_world(body)


def test_a_stop_token_without_text_is_counted_and_not_written() -> None:
    async def body(world: StreamWorld) -> None:
        await world.rows((1, "a", 1, NONE))
        await world.rows((1, "", 1, STOP))
        assert world.sink.deltas == [("a", 1)]
        assert world.sink.completion.num_output_tokens == 2

    in_world(body)


def test_the_segments_are_the_whole_time() -> None:
    async def body(world: StreamWorld) -> None:
        arrived_ns = world.clock.now_ns
        base_ns = (1, 2, 3, -40, 5, 6, 7, 8, 9, 0, 0, 0, 0)
        elapsed_ns = (100, 200, 300, 400, 500, 600)
        token_sent_ns = arrived_ns + sum(base_ns) + sum(elapsed_ns)
        times = {
            "token_sent_ns": token_sent_ns,
            "taken_ns": token_sent_ns + 20,
            "sent_ns": token_sent_ns + 50,
        }
        world.clock.now_ns = token_sent_ns + 90
        await world.rows((1, "a", 1, STOP), times=[SequenceTimes(1, base_ns)], elapsed_ns=elapsed_ns, **times)
        timings = world.sink.completion.timings
        assert len(timings.segments_ns) == len(SEGMENTS)
        assert timings.segments_ns == (1, 2, 3, 60, 205, 306, 407, 508, 609, 20, 30, 40, 0)
        assert sum(timings.segments_ns) == timings.e2e_ns == timings.ttft_ns

    in_world(body)


def test_the_time_of_the_last_write_is_part_of_it() -> None:
    async def main() -> None:
        world = StreamWorld()

        class Slow(Sink):
            def delta(self, text: str, num_tokens: int) -> None:
                world.clock.advance(7)

        sink = await world.open(1, Slow())
        now = world.clock.now_ns
        await world.rows((1, "a", 1, STOP), token_sent_ns=now, taken_ns=now, sent_ns=now)
        timings = sink.completion.timings
        assert timings.segments_ns[-1] == sum(timings.segments_ns) == timings.e2e_ns == 7

    asyncio.run(main())


def test_the_time_to_the_first_token_is_that_of_its_write() -> None:
    async def body(world: StreamWorld) -> None:
        world.clock.advance(3 * MS)
        await world.rows((1, "", 1, NONE))
        world.clock.advance(4 * MS)
        await world.rows((1, "a", 1, NONE))
        await world.rows((1, "b", 1, STOP))
        assert world.sink.completion.timings.ttft_ns == 7 * MS
        points = [(point[1], point[3]) for point in world.trace.points()]
        assert points == [(Point.FIRST_TOKEN, 1), (Point.FINISHED, 1)]

    in_world(body)


def test_a_request_without_text_has_no_time_to_first_token() -> None:
    async def body(world: StreamWorld) -> None:
        await world.rows((1, "", 0, CANCELLED), started=[Started(1, 5, ())])
        assert world.sink.completion.finish_reason is CANCELLED
        assert world.sink.completion.timings.ttft_ns is None

    in_world(body)


def test_a_failed_request_ends_with_an_error() -> None:  # trap 62
    async def body(world: StreamWorld) -> None:
        await world.rows((1, "a", 1, NONE))
        await world.rows((1, "", 0, ERROR))
        assert isinstance(world.sink.ending, RequestError) and world.sink.ending.status == 500
        assert world.metric('stageline_requests_total{finish_reason="error"} 1.0')

    in_world(body)


def test_a_rejection_is_the_answer() -> None:
    async def body(world: StreamWorld) -> None:
        await world.stage.handle([Rejected(1, "too long", 400, "prompt", "context_length_exceeded", 7)])
        error = world.sink.ending
        assert isinstance(error, RequestError) and error.retry_after_s == 7
        assert (error.message, error.status, error.param) == ("too long", 400, "prompt")
        assert world.metric('stageline_rejected_total{code="context_length_exceeded"} 1.0')
        await world.stage.handle([Rejected(1, "again", 400, None, None)])
        assert world.stage.num_live == 0

    in_world(body)


def test_a_chunk_of_n_tokens_counts_as_n_equal_gaps() -> None:
    async def body(world: StreamWorld) -> None:
        itl = world.telemetry.itl
        await world.rows((1, "a", 1, NONE))
        assert itl.count == 0, "the first has none before it"
        world.clock.advance(4 * MS)
        await world.rows((1, "b", 1, NONE))
        assert itl.count == 0, "it waits for more"
        world.clock.advance(16 * MS)
        await world.rows((1, "cd", 3, NONE))
        assert (itl.count, itl.total) == (4, 20 * MS)
        world.clock.advance(7 * MS)
        await world.rows((1, "e", 1, LENGTH))
        assert (itl.count, itl.total) == (5, 27 * MS)

    in_world(body, flush_ms=20.0)


def test_nobody_is_left_without_an_ending() -> None:
    async def body(world: StreamWorld) -> None:
        await world.rows((1, "a", 1, NONE))
        await world.stage.stop()
        await world.stage.stop()
        assert isinstance(world.sink.ending, RequestError) and world.sink.ending.status == 503

    in_world(body)
