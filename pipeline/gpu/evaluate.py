"""How well a model predicts a text: what `stageline eval` compares weights, and ways of keeping KV, by."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import cross_entropy

from pipeline.checkpoint.card import Architecture, ModelCard
from pipeline.errors import ConfigError
from pipeline.gpu.backends import open_model
from pipeline.gpu.evidence import INT8_SCHEME, Evidence
from pipeline.gpu.kv_dtype import KvDtype, token_bytes
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.reader import Reader
from pipeline.gpu.weights import load_tensors

WINDOW = 512
"""Tokens a window, each predicted from those before it; fewer if the model reads fewer."""
BLOCK_SIZE = 16
CHUNK = 128
"""Tokens a step: positions whose logits are held at a time."""

Weights: TypeAlias = Literal["fp32", "bf16", "int8"]
"""fp32 on torch, the others on the host kernels."""
Ints: TypeAlias = npt.NDArray[np.int64]
Progress: TypeAlias = Callable[[str], None]

_OPTIONS: dict[Weights, RunnerOptions] = {
    "fp32": RunnerOptions(device="cpu", dtype="float32", backend="torch"),
    "bf16": RunnerOptions(device="cpu", backend="host", weights="bf16"),
    "int8": RunnerOptions(device="cpu", backend="host", weights="int8"),
}


class Setting(msgspec.Struct, frozen=True):
    """One way to run the model."""

    weights: Weights
    kv: Literal["bf16", "int8", "fp8", "int4"] | None = None
    """None: as the activations."""

    @property
    def kv_dtype(self) -> KvDtype:
        return self.kv or ("fp32" if self.weights == "fp32" else "bf16")

    @property
    def options(self) -> RunnerOptions:
        return msgspec.structs.replace(_OPTIONS[self.weights], kv_dtype=self.kv or "auto")

    @property
    def kv_name(self) -> str:
        return self.kv_dtype

    def __str__(self) -> str:
        return f"{self.weights} weights, {self.kv_name} KV"


class Score(msgspec.Struct, frozen=True):
    """What one setting came to on a text."""

    weights: Weights
    kv: str
    num_tokens: int
    """Predictions."""
    perplexity: float
    increase: float
    """Of perplexity, as a share of the baseline's."""
    agreement: float
    """Share of the predictions whose best token is the baseline's."""
    kv_bytes_a_token: int


class _Reading(msgspec.Struct, frozen=True):
    loss: float
    """Mean negative log-likelihood, nats."""
    best: Ints
    """The best token of every prediction."""


def compare(
    card: ModelCard, token_ids: list[int], settings: list[Setting], size: int, progress: Progress
) -> list[Score]:
    """Score all on the same whole windows of `size` tokens, one model in memory at a time.

    The first is the baseline. Raises ConfigError if there is not one window, or a setting cannot run.
    """
    windows = _windows(card.architecture, token_ids, size)
    baseline: _Reading | None = None
    scores = []
    for setting in settings:
        progress(f"{len(windows)} windows of {windows.shape[1]} tokens with {setting} ...")
        reading = read(card, windows, setting, progress)
        baseline = baseline or reading
        scores.append(
            Score(
                weights=setting.weights,
                kv=setting.kv_name,
                num_tokens=reading.best.size,
                perplexity=float(np.exp(reading.loss)),
                increase=float(np.exp(reading.loss - baseline.loss)) - 1,
                agreement=float((reading.best == baseline.best).mean()),
                kv_bytes_a_token=token_bytes(card.architecture, setting.kv_dtype),
            )
        )
    return scores


def evaluate(
    card: ModelCard, token_ids: list[int], weights: Weights, against: Weights, progress: Progress
) -> Evidence:
    """Compare weights. Raises ConfigError as compare does."""
    baseline, found = compare(card, token_ids, [Setting(against), Setting(weights)], WINDOW, progress)
    return Evidence(
        reference=card.reference,
        scheme=INT8_SCHEME if weights == "int8" else weights,
        against=against,
        num_tokens=found.num_tokens,
        perplexity=found.perplexity,
        baseline=baseline.perplexity,
        agreement=found.agreement,
    )


@torch.inference_mode()
def read(card: ModelCard, windows: Ints, setting: Setting, progress: Progress) -> _Reading:
    """Windows [N, W], each from its start."""
    dtype = torch.float32 if setting.weights == "fp32" else torch.bfloat16
    tensors, size = load_tensors(card), windows.shape[1]
    opened = open_model(card.architecture, tensors, setting.options, dtype, torch.device("cpu"))
    reader = Reader(opened, card.architecture, size, BLOCK_SIZE)
    losses, best = [], []
    for number, window in enumerate(windows):
        if number and number % (len(windows) // 4 + 1) == 0:
            progress(f"  {number} are read")
        reader.start()
        for start in range(0, size, CHUNK):
            logits = reader.step(window[start : start + CHUNK].tolist())
            targets = torch.from_numpy(window[start + 1 : start + CHUNK + 1])
            logits = logits[: len(targets)]
            losses.append(cross_entropy(logits, targets, reduction="none"))
            best.append(logits.argmax(-1))
    return _Reading(float(torch.cat(losses).double().mean()), torch.cat(best).numpy())


def _windows(architecture: Architecture, token_ids: list[int], size: int) -> Ints:
    size = min(size, architecture.max_position // BLOCK_SIZE * BLOCK_SIZE)
    if len(token_ids) < size:
        raise ConfigError(f"the text has {len(token_ids)} tokens: at least {size} are needed")
    return np.array(token_ids[: len(token_ids) // size * size], np.int64).reshape(-1, size)
