"""How well a model predicts a text: what `stageline eval` compares weights by."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from pipeline.checkpoint.card import ModelCard
from pipeline.errors import ConfigError
from pipeline.gpu.api import StepInputs
from pipeline.gpu.backends import open_model
from pipeline.gpu.evidence import SCHEMES, Evidence
from pipeline.gpu.kv_cache import new_kv_cache
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.weights import FileWeights

WINDOW = 512
"""Tokens a window, each predicted from those before it; fewer if the model reads fewer."""
BLOCK_SIZE = 16
CHUNK = 128
"""Positions whose logits are held at a time."""

Weights: TypeAlias = Literal["fp32", "bf16", "int8", "int4"]
"""fp32 on torch, the others on the host kernels."""
Ints: TypeAlias = npt.NDArray[np.int64]

_OPTIONS: dict[Weights, RunnerOptions] = {
    "fp32": RunnerOptions(device="cpu", dtype="float32", backend="torch"),
    "bf16": RunnerOptions(device="cpu", backend="host", weights="bf16"),
    "int8": RunnerOptions(device="cpu", backend="host", weights="int8"),
    "int4": RunnerOptions(device="cpu", backend="host", weights="int4"),
}


def evaluate(
    card: ModelCard, token_ids: list[int], weights: Weights, against: Weights, progress: Callable[[str], None]
) -> Evidence:
    """Score both on the same whole windows of token_ids, one model in memory at a time.

    Raises ConfigError if there is not one window, or the host kernels cannot run.
    """
    size = min(WINDOW, card.architecture.max_position // BLOCK_SIZE * BLOCK_SIZE)
    windows = np.array(token_ids[: len(token_ids) // size * size], np.int64).reshape(-1, size)
    if not len(windows):
        raise ConfigError(f"the text has {len(token_ids)} tokens: at least {size} are needed")
    progress(f"{len(windows)} windows of {size} tokens with {against} weights ...")
    baseline, expected = score(card, windows, against)
    progress(f"the same with {weights} weights ...")
    loss, found = score(card, windows, weights)
    return Evidence(
        reference=card.reference,
        scheme=SCHEMES.get(weights, weights),
        against=against,
        num_tokens=expected.size,
        perplexity=float(np.exp(loss)),
        baseline=float(np.exp(baseline)),
        agreement=float((expected == found).mean()),
    )


@torch.inference_mode()
def score(card: ModelCard, windows: Ints, weights: Weights) -> tuple[float, Ints]:
    """Mean negative log-likelihood in nats, and the best token of every prediction; windows [N, W]."""
    options, device = _OPTIONS[weights], torch.device("cpu")
    dtype = torch.float32 if weights == "fp32" else torch.bfloat16
    model, layout, *_ = open_model(card.architecture, FileWeights(card), options, dtype, device)
    size = windows.shape[1]
    cache = new_kv_cache(card.architecture, layout, size // BLOCK_SIZE, BLOCK_SIZE, device)

    def read(token_ids: Ints, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        logits = model.forward(_inputs(token_ids, start, end), cache).float()
        targets = torch.from_numpy(token_ids[start + 1 : end + 1])
        logits = logits[: len(targets)]
        return torch.nn.functional.cross_entropy(logits, targets, reduction="none"), logits.argmax(-1)

    parts = [read(window, at, min(at + CHUNK, size)) for window in windows for at in range(0, size, CHUNK)]
    losses, best = (torch.cat(part) for part in zip(*parts, strict=True))
    return float(losses.double().mean()), best.numpy()


def _inputs(token_ids: Ints, start: int, end: int) -> StepInputs:
    """One row: positions start..end of a sequence in blocks 0, 1, 2, ..., with the logits of all of them."""
    positions = torch.arange(start, end)
    return StepInputs(
        token_ids=torch.from_numpy(token_ids[start:end]),
        positions=positions,
        slot_mapping=positions,
        query_start=torch.tensor([0, end - start], dtype=torch.int32),
        context_lens=torch.tensor([end], dtype=torch.int32),
        block_tables=torch.arange(-(-end // BLOCK_SIZE), dtype=torch.int32)[None],
        logits_rows=positions - start,
    )
