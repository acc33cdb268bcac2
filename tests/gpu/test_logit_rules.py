"""Everything that is done to logits, through the slots' columns, against the plain oracle."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.gpu.host.build import Build, find_compiler
from pipeline.gpu.host.library import load_library
from pipeline.gpu.host.sampling import HostSampler
from pipeline.gpu.sampling import SamplingOp
from pipeline.gpu.sampling_slots import SamplingSlots
from pipeline.messages import Admitted, SamplingParams
from tests.gpu.sampling_oracle import History, expected

VOCAB = 75
CPU = torch.device("cpu")
UNSURE = 1e-4
"""Nearer to another token than that, rounding may decide."""

ids = st.integers(0, VOCAB - 1)
id_lists = st.lists(ids, min_size=1, max_size=6, unique=True)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    "top_k": st.sampled_from([1, 5, 40]),
    "top_p": st.sampled_from([0.2, 0.7, 0.95]),
    "min_p": st.sampled_from([0.01, 0.2, 1.0]),
    "typical_p": st.sampled_from([0.1, 0.6, 0.95]),
    "presence_penalty": st.sampled_from([-2.0, 0.5, 2.0]),
    "frequency_penalty": st.sampled_from([-1.0, 0.25, 2.0]),
    "repetition_penalty": st.sampled_from([0.5, 1.2, 2.0]),
    "logit_bias": id_lists.map(lambda picked: tuple((k, 3.0 - k % 7) for k in picked)),
    "allowed_token_ids": st.lists(ids, min_size=2, max_size=30, unique=True).map(tuple),
    "bad_token_ids": st.lists(st.lists(ids, min_size=1, max_size=4).map(tuple), max_size=6).map(tuple),
    "min_tokens": st.integers(1, 8),
    "end_ids": id_lists.map(tuple),
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[SamplingParams, History]:
    """Some of the fields, and a history whose end begins a bad word now and then."""
    names = draw(st.sets(st.sampled_from(sorted(FIELDS)), max_size=5))
    values = {name: draw(FIELDS[name]) for name in sorted(names)}
    sampling = SamplingParams(seed=draw(st.integers(-(2**63), 2**63 - 1)), **values)
    prompt, output = draw(st.lists(ids, min_size=1, max_size=8)), draw(st.lists(ids, max_size=6))
    longer = [bad for bad in sampling.bad_token_ids if len(bad) > 1]
    if longer and output and output[0] % 2:
        output += longer[0][:-1]
    return sampling, History(prompt, output)


def admit(slots: SamplingSlots, slot: int, sampling: SamplingParams, history: History) -> None:
    token_ids = [*history.prompt, *history.output] if sampling.counts_tokens else []
    slots.admit([Admitted(slot, sampling, slot, num_prompt_tokens=len(history.prompt), token_ids=token_ids)])


def sampled(
    op: SamplingOp, slots: SamplingSlots, numbers: list[int], positions: list[int], logits: torch.Tensor
) -> list[int]:
    columns = slots.columns(np.array(numbers), np.array(positions))
    rows = slots.rows({name: torch.from_numpy(column) for name, column in columns.items()})
    token_ids = op(logits, rows)
    slots.remember(rows, token_ids)
    return token_ids.tolist()


def random_logits(num_rows: int, seed: int) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.fixture(scope="module", params=["torch", "host"])
def op(request: pytest.FixtureRequest) -> SamplingOp:
    if request.param == "torch":
        return SamplingOp()
    return HostSampler(load_library(Build(find_compiler())), 2)


@settings(deadline=None, max_examples=25)
@given(asked=st.lists(requests(), min_size=1, max_size=6), seed=st.integers(0, 2**32))
def test_every_row_is_what_the_oracle_says(
    op: SamplingOp, asked: list[tuple[SamplingParams, History]], seed: int
) -> None:
    slots, logits = SamplingSlots(8, VOCAB, CPU), random_logits(len(asked), seed)
    numbers = [(3 * k + seed) % 8 for k in range(len(asked))]
    for slot, (sampling, history) in zip(numbers, asked, strict=True):
        admit(slots, slot, sampling, history)
    positions = [history.position for _, history in asked]
    chosen = sampled(op, slots, numbers, positions, logits)
    for row, (sampling, history) in enumerate(asked):
        token_id, margin = expected(logits[row].double().numpy(), sampling, history)
        assert chosen[row] == token_id or margin < UNSURE, (row, sampling)


@settings(deadline=None, max_examples=12)
@given(asked=st.lists(requests(), min_size=2, max_size=6), seed=st.integers(0, 2**32))
def test_a_sequence_gets_the_same_tokens_alone_among_others_and_admitted_again(
    op: SamplingOp, asked: list[tuple[SamplingParams, History]], seed: int
) -> None:
    steps = [random_logits(len(asked), seed + k) for k in range(4)]
    together = [history.output.copy() for _, history in asked]
    slots = SamplingSlots(8, VOCAB, CPU)
    for slot, (sampling, history) in enumerate(asked):
        admit(slots, slot, sampling, history)
    for step, logits in enumerate(steps):
        positions = [h.position + step for _, h in asked]
        for output, token_id in zip(
            together, sampled(op, slots, list(range(len(asked))), positions, logits), strict=True
        ):
            output.append(token_id)
    for row, (sampling, history) in enumerate(asked):
        alone, output = SamplingSlots(2, VOCAB, CPU), history.output.copy()
        for step, logits in enumerate(steps):
            if step in (0, 2):  # at 2 as after a preemption
                admit(alone, 1, sampling, History(history.prompt, output))
            position = len(history.prompt) + len(output) - 1
            output += sampled(op, alone, [1], [position], logits[row : row + 1])
        assert output == together[row], sampling


def test_a_grammar_that_allows_the_end_alone_wins_over_min_tokens(op: SamplingOp) -> None:
    slots = SamplingSlots(2, VOCAB, CPU)
    sampling = SamplingParams(min_tokens=5, end_ids=(7,), allowed_token_ids=(7,), temperature=1.0)
    admit(slots, 0, sampling, History([1], []))
    assert sampled(op, slots, [0], [0], random_logits(1, 1)) == [7]


def test_nobody_pays_where_nobody_asks() -> None:
    slots = SamplingSlots(4, VOCAB, CPU)
    admit(slots, 1, SamplingParams(min_p=0.5, presence_penalty=1.0, logprobs=3), History([1], []))
    columns = slots.columns(np.array([0, 2]), np.array([3, 4]))
    assert sorted(columns) == ["position", "seed", "temperature", "top_k", "top_p"]
    assert slots.asked_logprobs(np.array([0, 2])).size == 0
    admit(slots, 1, SamplingParams(), History([1], []))  # the slot is taken over
    assert sorted(slots.columns(np.array([1]), np.array([0]))) == sorted(columns)


def greedy(
    op: SamplingOp, history: History, logits: torch.Tensor, num_tokens: int, **fields: Any
) -> list[int]:
    """What one sequence says when every step has the same logits."""
    slots, output = SamplingSlots(2, VOCAB, CPU), []
    admit(slots, 1, SamplingParams(temperature=0.0, **fields), history)
    for step in range(num_tokens):
        output += sampled(op, slots, [1], [history.position + step], logits)
    return output


def test_presence_is_of_the_output_and_repetition_of_the_prompt_too(op: SamplingOp) -> None:  # trap 29
    logits = torch.full((1, VOCAB), -9.0)
    logits[0, :3] = torch.tensor([3.0, 2.5, 2.25])
    prompt = History([0, 1], [])
    assert greedy(op, prompt, logits, 4, presence_penalty=1.0) == [0, 1, 2, 0]
    assert greedy(op, prompt, logits, 4, frequency_penalty=0.4) == [0, 0, 1, 2]
    assert greedy(op, prompt, logits, 3, repetition_penalty=2.0) == [2, 0, 0]


def test_a_bad_word_is_stopped_at_its_last_token(op: SamplingOp) -> None:
    logits = torch.full((1, VOCAB), -9.0)
    logits[0, 4:7] = torch.tensor([1.0, 0.5, 0.25])
    bad = ((4, 4, 4, 4), (4, 4, 4, 5), (5, 6))
    assert greedy(op, History([4, 4, 4], []), logits, 8, bad_token_ids=bad) == [4, 4, 4, 6, 4, 4, 4, 6]
    assert greedy(op, History([1], [4, 4]), logits, 3, bad_token_ids=((4, 4, 4), (5, 4))) == [5, 5, 5]
