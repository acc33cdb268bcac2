"""Masks and penalties on the logits of many rows."""

import torch

from pipeline.gpu.kernels import penalties, token_mask
from pipeline.gpu.kernels.config import LaunchConfig
from pipeline.gpu.kernels.variant import ModelShape
from pipeline.gpu.kernels.workloads.workload import Workload, random, relative_error
from pipeline.gpu.logit_rules import LogitRules


def mask(shape: ModelShape, num_rows: int, device: torch.device) -> Workload:
    """Half of the tokens are out."""
    logits = random((num_rows, shape.vocab_size), device, torch.float32)
    words = -(-shape.vocab_size // 32)
    bits = torch.randint(-(2**31), 2**31, (num_rows, words), device=device, dtype=torch.int32)
    every = torch.arange(num_rows, device=device)
    rules = LogitRules(every, every[:0], mask=bits)

    def error(config: LaunchConfig | None) -> float:
        given, expected = logits.clone(), logits.clone()
        token_mask.mask_tokens(given, bits, config)
        rules.allow(expected)
        return relative_error(given.clamp(min=-99), expected.clamp(min=-99))

    return Workload(
        "token_mask",
        f"token_mask {shape.name} {num_rows}",
        token_mask.DEFAULT,
        {"vocab": shape.vocab_size},
        lambda config: token_mask.mask_tokens(logits, bits, config),
        error,
        num_bytes=bits.nbytes + logits.nbytes // 2,
        rival=lambda: rules.allow(logits),
    )


def penalty(shape: ModelShape, num_rows: int, device: torch.device) -> Workload:
    """Every eighth token has come before."""
    logits = random((num_rows, shape.vocab_size), device, torch.float32)
    counts = torch.zeros((num_rows, shape.vocab_size), dtype=torch.int32, device=device)
    counts[:, ::8] = 5
    every = torch.arange(num_rows, device=device)
    values = torch.tensor([1.25, 0.5, -0.25], device=device).repeat(num_rows, 1).T.contiguous()
    columns = (values[0], values[1], values[2])
    repetition, frequency, presence = columns
    rules = LogitRules(
        rows=every,
        others=every[:0],
        counted_at=every,
        places=every,
        repetition=repetition,
        frequency=frequency,
        presence=presence,
        counts=counts,
    )

    def error(config: LaunchConfig | None) -> float:
        given, expected = logits.clone(), logits.clone()
        penalties.penalise(given, every, counts, every, columns, config)
        rules.penalise(expected)
        return relative_error(given, expected)

    return Workload(
        "penalties",
        f"penalties {shape.name} {num_rows}",
        penalties.DEFAULT,
        {"vocab": shape.vocab_size},
        lambda config: penalties.penalise(logits, every, counts, every, columns, config),
        error,
        num_bytes=counts.nbytes + logits.nbytes // 4,
        rival=lambda: rules.penalise(logits),
    )
