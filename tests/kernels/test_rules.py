"""Masks and penalties in Triton against gpu.logit_rules."""

import pytest
import torch
from torch import Tensor

from tests.kernels.guarded import guarded
from tests.kernels.isolated import isolated


def random_logits(num_rows: int, vocab: int) -> Tensor:
    logits = torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(vocab)) * 4
    logits[:, ::7] = -torch.inf
    return logits


@pytest.mark.parametrize("vocab", [1, 31, 32, 300])
@isolated
def test_masks(vocab: int) -> None:
    from pipeline.gpu.kernels.config import LaunchConfig
    from pipeline.gpu.kernels.token_mask import mask_tokens
    from pipeline.gpu.logit_rules import LogitRules

    logits, words = random_logits(3, vocab), -(-vocab // 32)
    mask = torch.randint(-(2**31), 2**31, (3, words), dtype=torch.int32)
    mask[1] = -1
    got, expected = guarded(logits), logits.clone()
    mask_tokens(got, guarded(mask), LaunchConfig(constants={"WORDS": 8}))
    none = torch.arange(0)
    LogitRules(torch.arange(3), none, mask=mask).allow(expected)
    assert got.equal(expected) and got[1].equal(logits[1])


@pytest.mark.parametrize("vocab", [1, 300, 512])
@isolated
def test_penalties(vocab: int) -> None:
    from pipeline.gpu.kernels.config import LaunchConfig
    from pipeline.gpu.kernels.penalties import penalise
    from pipeline.gpu.logit_rules import LogitRules

    logits = random_logits(4, vocab)
    counts = torch.randint(0, 7, (5, vocab), dtype=torch.int32) * (torch.rand(5, vocab) < 0.4)
    columns = {
        "counted_at": torch.tensor([1, 3]),
        "places": torch.tensor([4, 0]),
        "repetition": torch.tensor([1.3, 0.7]),
        "frequency": torch.tensor([0.25, -1.0]),
        "presence": torch.tensor([-2.0, 0.5]),
    }
    at, places, *penalties = (guarded(each) for each in columns.values())
    got, expected = guarded(logits), logits.clone()
    penalise(got, at, guarded(counts.int()), places, tuple(penalties), LaunchConfig(constants={"BLOCK": 128}))  # type: ignore[arg-type]
    LogitRules(torch.arange(4), torch.arange(0), counts=counts.int(), **columns).penalise(expected)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    assert got[0].equal(logits[0]) and got[2].equal(logits[2])


@isolated
def test_the_sampler_does_all_of_it_as_the_torch_op() -> None:
    import numpy as np

    from pipeline.gpu.kernels.sampling import TritonSampler
    from pipeline.gpu.sampling import SamplingOp
    from pipeline.gpu.sampling_slots import SamplingSlots
    from pipeline.messages import Admitted, SamplingParams

    asked = [
        SamplingParams(temperature=0.0, presence_penalty=2.0, bad_token_ids=((5,), (3, 4))),
        SamplingParams(allowed_token_ids=(1, 7, 9), min_tokens=9, end_ids=(7,), seed=3),
        SamplingParams(temperature=0.0, top_k=4),
        SamplingParams(min_p=0.3, repetition_penalty=1.5, logit_bias=((8, 3.0),), seed=4),
    ]
    logits = random_logits(4, 50)
    tokens = []
    for op in (SamplingOp(), TritonSampler()):
        slots = SamplingSlots(4, 50, torch.device("cpu"))
        slots.admit(
            Admitted(k, each, k, num_prompt_tokens=2, token_ids=[1, 2, 8, 3] if each.counts_tokens else [])
            for k, each in enumerate(asked)
        )
        columns = slots.columns(np.arange(4), np.full(4, 3))
        rows = slots.rows({name: torch.from_numpy(column) for name, column in columns.items()})
        tokens.append(op(logits, rows).tolist())
    assert tokens[0] == tokens[1] and tokens[0][1] in (1, 9)
