"""How well a model predicts a text: what `stageline eval` compares weights, and ways of keeping KV, by."""

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pipeline.checkpoint.card import Architecture, ModelCard
from pipeline.core.block_pool import blocks_for
from pipeline.core.retention import KvEviction, Retention, Retentions
from pipeline.errors import ConfigError, RequestError
from pipeline.gpu.backends import Opened, open_model
from pipeline.gpu.evaluation.evidence import SCHEMES, Evidence
from pipeline.gpu.evaluation.reader import Reader
from pipeline.gpu.kv.dtype import KvDtype, token_bytes
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.weights.load import FileWeights
from pipeline.messages import DeviceReady, Terms

WINDOW = 512
"""Tokens a window, each predicted from those before it; fewer if the model reads fewer."""
BLOCK_SIZE = 16
SINKS = 4
"""Tokens at the start that are never dropped; a block, as budgets are in blocks."""

Weights: TypeAlias = Literal["fp32", "bf16", "int8", "int4"]
"""fp32 on torch, the others on the host kernels."""
Ints: TypeAlias = npt.NDArray[np.int64]
Progress: TypeAlias = Callable[[str], None]

_OPTIONS: dict[Weights, RunnerOptions] = {
    "fp32": RunnerOptions(device="cpu", dtype="float32", backend="torch"),
    "bf16": RunnerOptions(device="cpu", backend="host", weights="bf16"),
    "int8": RunnerOptions(device="cpu", backend="host", weights="int8"),
    "int4": RunnerOptions(device="cpu", backend="host", weights="int4"),
}


class Setting(msgspec.Struct, frozen=True):
    """One way to run the model."""

    weights: Weights
    kv: Literal["bf16", "int8", "fp8", "int4"] | None = None
    """None: as the activations."""
    kv_eviction: KvEviction = "none"
    kv_budget: int = 0
    """Tokens that stay where others are dropped."""

    @property
    def kv_dtype(self) -> KvDtype:
        return self.kv or ("fp32" if self.weights == "fp32" else "bf16")

    @property
    def options(self) -> RunnerOptions:
        return msgspec.structs.replace(_OPTIONS[self.weights], kv_dtype=self.kv or "auto")

    @property
    def kv_name(self) -> str:
        kept = "" if self.kv_eviction == "none" else f", {self.kv_eviction} of {self.kv_budget:,} tokens"
        return self.kv_dtype + kept

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.weights == "fp32" else torch.bfloat16

    def retention(self, size: int) -> Retention:
        """Of a sequence of so many tokens. Raises ConfigError for a budget that is too small."""
        device = DeviceReady(blocks_for(size, BLOCK_SIZE) + 1, BLOCK_SIZE, 1, BLOCK_SIZE)
        try:
            return Retentions(device, self.kv_eviction, self.kv_budget, SINKS).of(Terms(), size)
        except RequestError as error:
            raise ConfigError(error.message) from error

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

    The first is the baseline. Where any setting has a budget, what lies within the largest is read but not
    scored: nothing was dropped before it. Raises ConfigError if there is not one window, or a setting
    cannot run.
    """
    windows = _windows(card.architecture, token_ids, size)
    num_free = max(setting.kv_budget for setting in settings)
    if num_free >= windows.shape[1]:
        raise ConfigError(f"a budget of {num_free} tokens drops nothing of windows of {windows.shape[1]}")
    baseline: _Reading | None = None
    scores = []
    for setting in settings:
        progress(f"{len(windows)} windows of {windows.shape[1]} tokens with {setting} ...")
        reading = read(card, windows, num_free, setting, progress)
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
        scheme=SCHEMES.get(weights, weights),
        against=against,
        num_tokens=found.num_tokens,
        perplexity=found.perplexity,
        baseline=baseline.perplexity,
        agreement=found.agreement,
    )


def open_setting(card: ModelCard, setting: Setting) -> Opened:
    """The model. Raises ConfigError if the setting cannot run."""
    device = torch.device("cpu")
    return open_model(card.architecture, FileWeights(card), setting.options, setting.dtype, device)


@torch.inference_mode()
def read(card: ModelCard, windows: Ints, num_free: int, setting: Setting, progress: Progress) -> _Reading:
    """Windows [N, W], each from its start; predictions from its first `num_free` tokens do not count."""
    opened, size = open_setting(card, setting), windows.shape[1]
    reader = Reader(opened, card.architecture, size, BLOCK_SIZE, setting.retention(size))
    losses, best = [], []
    for number, window in enumerate(windows):
        if number and number % (len(windows) // 4 + 1) == 0:
            progress(f"  {number} are read")
        parts = list(_read_window(reader, window))
        losses.append(torch.cat([loss for loss, _ in parts])[num_free:])
        best.append(torch.cat([token_ids for _, token_ids in parts])[num_free:])
    return _Reading(float(torch.cat(losses).double().mean()), torch.cat(best).numpy())


def _read_window(reader: Reader, window: Ints) -> Iterator[tuple[Tensor, Tensor]]:
    """Step by step: the loss and the best token of each prediction."""
    reader.start()
    targets = torch.from_numpy(window[1:])
    for logits in reader.read(window.tolist()):
        its_targets, targets = targets[: len(logits)], targets[len(logits) :]
        logits = logits[: len(its_targets)]
        yield cross_entropy(logits, its_targets, reduction="none"), logits.argmax(-1)


def _windows(architecture: Architecture, token_ids: list[int], size: int) -> Ints:
    size = min(size, architecture.max_position // BLOCK_SIZE * BLOCK_SIZE)
    if len(token_ids) < size:
        raise ConfigError(f"the text has {len(token_ids)} tokens: at least {size} are needed")
    return np.array(token_ids[: len(token_ids) // size * size], np.int64).reshape(-1, size)
