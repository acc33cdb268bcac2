import asyncio
from typing import Any

import pytest

from pipeline.messages import NO_TOKEN, Cancel, FinishReason, SequenceTimes, Started, TextBatch, TokenBatch
from pipeline.runtime.stage import NoOptions
from pipeline.runtime.testing import ManualClock
from pipeline.stages.detokenize import Detokenize
from tests.text_world import World, tokens

NONE, STOP, LENGTH, CANCELLED, ERROR, _ = FinishReason


def started(*request_ids: int, stop: tuple[str, ...] = ()) -> tuple[Started, ...]:
    return tuple(Started(request_id, 3, stop) for request_id in request_ids)


def run(*batches: TokenBatch, **context: Any) -> tuple[list[TextBatch], list[Cancel], int]:
    """Handle the batches one by one: what is sent, what is cancelled, how many requests are left."""

    async def main() -> tuple[list[TextBatch], list[Cancel], int]:
        world = World(Detokenize, NoOptions(), **context)
        await world.stage.start()
        for batch in batches:
            await world.stage.handle([batch])
        return await world.sent(TextBatch), await world.sent(Cancel), world.stage.num_live

    return asyncio.run(main())


def rows(batch: TextBatch) -> list[tuple[int, str, int, int]]:
    return list(zip(batch.request_ids, batch.texts, batch.num_tokens, batch.finish_reasons, strict=True))


def test_rows_keep_their_own_text() -> None:
    first = tokens((1, 0xC4, NONE), (2, 0x61, NONE), started=started(1, 2))
    (one, two), _, num_live = run(first, tokens((2, 0xC4, NONE), (1, 0x8F, NONE)))
    assert rows(one) == [(1, "", 1, NONE), (2, "a", 1, NONE)]
    assert rows(two) == [(2, "", 1, NONE), (1, "ď", 1, NONE)]  # trap 2
    assert num_live == 2


@pytest.mark.parametrize(
    ("row", "text", "num_tokens"),
    [
        ((1, 0x61, LENGTH), "a", 1),
        ((1, 0x8F, LENGTH), "ď", 1),
        ((1, 0x61, STOP), "", 1),  # an eos id: counted, not shown
        ((1, NO_TOKEN, CANCELLED), "", 0),
        ((1, NO_TOKEN, ERROR), "", 0),
    ],
)
def test_a_terminal_row_flushes_and_drops_the_request(
    row: tuple[int, int, int], text: str, num_tokens: int
) -> None:
    held = 0xC4 if text == "ď" else 0x62
    (_, last), cancels, num_live = run(tokens((1, held, NONE), started=started(1)), tokens(row))
    assert rows(last) == [(1, text, num_tokens, row[2])]
    assert (cancels, num_live) == ([], 0)


@pytest.mark.parametrize("row", [(1, 256, STOP), (1, NO_TOKEN, CANCELLED)])
def test_half_a_character_is_flushed_as_a_replacement(row: tuple[int, int, int]) -> None:
    (_, last), _, _ = run(tokens((1, 0xC4, NONE), started=started(1)), tokens(row))
    assert last.texts == ["\ufffd"]


def test_a_stop_string_ends_the_request_here() -> None:  # trap 7
    text = b"ab##c"
    batches = [tokens((1, text[0], NONE), (2, 0x7A, NONE), started=(*started(1, stop=("##",)), *started(2)))]
    batches += [tokens((1, byte, NONE), (2, 0x7A, NONE)) for byte in text[1:]]
    sent, cancels, num_live = run(*batches)
    of_one = [row[1:] for batch in sent for row in rows(batch) if row[0] == 1]
    assert of_one == [("a", 1, NONE), ("b", 1, NONE), ("", 1, NONE), ("", 1, STOP)]
    assert cancels == [Cancel(1, STOP)]
    assert sum(batch.num_tokens[-1] for batch in sent) == 5 and num_live == 1  # the other goes on


def test_held_text_comes_with_the_terminal_row() -> None:  # trap 9
    (_, last), cancels, _ = run(
        tokens((1, 0x23, NONE), started=started(1, stop=("##",))), tokens((1, 256, STOP))
    )
    assert (rows(last), cancels) == ([(1, "#", 1, STOP)], [])


def test_a_stop_string_in_the_last_token_is_a_stop() -> None:
    (_, last), cancels, _ = run(
        tokens((1, 0x23, NONE), started=started(1, stop=("##",))), tokens((1, 0x23, LENGTH))
    )
    assert (rows(last), cancels) == ([(1, "", 1, STOP)], [])


def test_rows_in_flight_after_the_end_are_dropped() -> None:
    sent, cancels, num_live = run(
        tokens((1, 0x23, NONE), started=started(1, stop=("#",))),
        tokens((1, 0x61, NONE), (9, 0x61, NONE)),
        tokens((1, NO_TOKEN, CANCELLED)),
    )
    assert [rows(batch) for batch in sent] == [[(1, "", 1, STOP)], [], []]
    assert (len(cancels), num_live) == (1, 0)


def test_a_request_that_ends_before_its_first_token() -> None:
    (only,), _, num_live = run(tokens((1, NO_TOKEN, CANCELLED), started=started(1)))
    assert rows(only) == [(1, "", 0, CANCELLED)] and num_live == 0


def test_what_is_not_a_row_is_handed_on_with_the_times() -> None:
    clock = ManualClock(500)
    times = [SequenceTimes(1, (1,) * 13)]
    batch = tokens(
        (1, 0x61, NONE), started=started(1), times=times, elapsed_ns=(7,) * 6, sent_ns=400, step_id=3
    )
    (only,), _, _ = run(batch, clock=clock)
    assert (only.step_id, only.started, only.times, only.elapsed_ns) == (3, batch.started, times, (7,) * 6)
    assert (only.token_sent_ns, only.taken_ns, only.sent_ns) == (400, 500, 500)


def test_one_batch_out_for_each_batch_in() -> None:
    """However many rows: the cost of a hop is per step."""

    async def main() -> None:
        world = World(Detokenize, NoOptions())
        await world.stage.start()
        many = tuple((request_id, 0x61, NONE) for request_id in range(256))
        await world.stage.handle([tokens(*many, started=started(*range(256))), tokens(*many)])
        assert [len(batch.texts) for batch in await world.sent(TextBatch)] == [256, 256]

    asyncio.run(main())
