"""Logprobs on the device: of raw logits, in a fixed order, for the rows that ask."""

import torch

from pipeline.gpu.logprobs import logprobs_of
from pipeline.messages import Logprobs


def test_of_the_rows_that_ask_as_many_as_each_wants() -> None:
    logits = torch.tensor(
        [[0.0, 1.0, 1.0, -torch.inf], [5.0, 0.0, 0.0, 0.0], [3.0, 1.0, 2.0, 0.0]]
    ).bfloat16()
    rows = torch.tensor([0, 2])
    told = logprobs_of(logits, torch.tensor([2, 0, 3]), rows)
    message = told.to_message([7, 9], [3, 0])
    expected = torch.log_softmax(logits.float(), -1)
    assert message == Logprobs(
        request_ids=[7, 9],
        token_ids=[2, 3],
        values=[expected[0, 2].item(), expected[2, 3].item()],
        top_ids=[[1, 2, 0], []],  # of equals the lower id comes first
        top_values=[expected[0, [1, 2, 0]].tolist(), []],
    )


def test_a_row_is_told_the_same_among_many() -> None:
    logits = torch.randn(70, 500, generator=torch.Generator().manual_seed(1)).round(decimals=1)
    tokens, rows = logits.argmin(-1), torch.arange(70)
    together = logprobs_of(logits, tokens, rows)
    for row in (0, 31, 32, 69):
        alone = logprobs_of(logits[row : row + 1], tokens[row : row + 1], rows[:1])
        for one, many in zip(alone, together, strict=True):
            assert one[0].equal(many[row])
