import asyncio
from typing import Any

import pytest

from pipeline.messages import (
    NO_TOKEN,
    Cancel,
    FinishReason,
    Logprobs,
    SequenceTimes,
    Started,
    TextBatch,
    TokenBatch,
)
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


def told(*rows: tuple[int, int]) -> Logprobs:
    """Of tokens of requests, each with itself as the only alternative."""
    ids, token_ids = [list(column) for column in zip(*rows, strict=True)]
    return Logprobs(ids, token_ids, [-1.0] * len(ids), [[k] for k in token_ids], [[-1.0]] * len(ids))


def test_logprobs_are_spelled_for_the_rows_that_are_passed_on() -> None:
    first = tokens(
        (1, 0x61, NONE),
        (2, 0x62, NONE),
        (1, 0xC4, NONE),  # ends at the stop string before it
        (2, 256, STOP),
        started=(*started(1, stop=("a",)), *started(2)),
        logprobs=told((1, 0x61), (2, 0x62), (1, 0xC4), (2, 256)),
    )
    ((batch,), _, _) = run(first)
    assert batch.logprobs is not None
    assert batch.logprobs.request_ids == [1, 2, 2]
    assert [each.piece for each in batch.logprobs.entries] == [b"a", b"b", b"<|end|>"]
    assert batch.logprobs.entries[1].top == [(b"b", -1.0)]


def test_special_tokens_and_stops_are_shown_where_that_was_asked() -> None:
    shown = Started(1, 3, (), skips_special=False, includes_stop=True)
    late = Started(2, 3, ("b",), min_tokens=1, includes_stop=True)
    batch = tokens((1, 258, NONE), (1, 0x61, STOP), (2, 0x62, NONE), (2, 0x62, NONE), started=(shown, late))
    ((sent,), cancels, _) = run(batch)
    assert sent.texts[1:] == ["a", "b", "b"] and sent.texts[0].startswith("<|")
    assert [each.request_id for each in cancels] == [2]
