from collections import Counter
from itertools import islice

import pytest

from pipeline.bench.feeds import FEEDS, NOT_FED
from pipeline.bench.samples import (
    TEXT,
    Load,
    generate_request,
    step_handle,
    step_plan,
    steps,
    text_batch,
    token_batch,
    tokenized_request,
)
from pipeline.checkpoint.card import ModelCard
from pipeline.messages import StepPlan, TextBatch, TokenBatch
from pipeline.topology import LINKS, Lane


@pytest.fixture
def load(fake_card: ModelCard) -> Load:
    return Load.of(fake_card, num_rows=5)


def columns(message: StepPlan | TokenBatch | TextBatch, *names: str) -> set[int]:
    return {len(getattr(message, name)) for name in names}


def test_every_data_link_has_a_feed() -> None:
    assert {*FEEDS, *NOT_FED} == {link.carries for link in LINKS if link.lane is Lane.DATA}


def test_a_sequence_begins_once_goes_on_without_a_hole_and_ends_once(load: Load) -> None:
    positions: dict[int, list[int]] = {}
    lasts: Counter[int] = Counter()
    for rows in islice(steps(load), 3 * load.num_tokens):
        assert len({row.request_id for row in rows}) == load.num_rows
        for row in rows:
            assert not lasts[row.request_id]
            positions.setdefault(row.request_id, []).append(row.position)
            lasts[row.request_id] += row.is_last
    assert all(seen == list(range(len(seen))) for seen in positions.values())
    assert all(len(positions[number]) == load.max_tokens(number) for number in lasts if lasts[number])
    assert len(positions) > 2 * load.num_rows


def test_columns_of_a_message_are_equally_long(load: Load) -> None:
    for step_id, rows in enumerate(islice(steps(load), 300)):
        plan = step_plan(load, step_id, rows, 1)
        names = ("request_ids", "epochs", "slots", "num_tokens", "num_computed", "samples", "token_ids")
        assert columns(plan, *names) == {5}
        assert len(plan.admitted) == sum(row.position == 0 for row in rows)
        assert len(step_handle(load, step_id, rows, 1).token_ids_sync()) == 5
        assert columns(token_batch(load, step_id, rows, 1), "request_ids", "token_ids", "finish_reasons") == {
            5
        }
        assert columns(text_batch(load, step_id, rows, 1), "request_ids", "texts", "num_tokens") == {5}


def test_text_is_that_of_its_tokens(load: Load) -> None:
    assert "".join(load.pieces) == TEXT


def test_requests_have_text_of_several_lengths_and_an_end(load: Load) -> None:
    requests = [generate_request(load, number, 1) for number in range(8)]
    assert len({len(str(request.prompt)) for request in requests}) > 2
    tokenized = tokenized_request(load, 0, 1)
    assert len(tokenized.token_ids) == load.num_prompt_tokens
    assert tokenized.sampling.max_tokens == load.max_tokens(0) >= 1
