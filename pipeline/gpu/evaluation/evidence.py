"""What evaluations have found about quantised weights: the ground on which `weights = "auto"` decides.

`stageline eval` writes one record for each model and scheme into $XDG_CACHE_HOME/stageline/evals
(~/.cache/... without that variable). What is known of the default model comes with the program.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.reference import DEFAULT_REFERENCE
from pipeline.checkpoint.store import models_folder
from pipeline.checkpoint.weight_files import size_bytes

INT8_SCHEME = "int8 per output, activations int8 in groups of 32"
BLOCKS_SCHEME = "the file's own blocks, activations int8 in groups of 32"
"""A scheme's name changes when the arithmetic does: records of another one do not count."""
SCHEMES = {"int4": BLOCKS_SCHEME, "int8": INT8_SCHEME}
"""By `weights`, the fastest first."""
MAX_INCREASE = 0.01
"""Of perplexity, as a share."""
MIN_TOKENS = 4096
"""Fewer say too little: the increase is known to about 0.3 % from so many."""


class Evidence(msgspec.Struct, frozen=True):
    """One evaluation of a model's weights against the same model in `against`, on the same tokens."""

    reference: str
    scheme: str
    against: str
    num_tokens: int
    """Predictions that were scored."""
    perplexity: float
    baseline: float
    """The perplexity of `against`."""
    agreement: float
    """Share of the predictions whose best token is the same."""

    @property
    def increase(self) -> float:
        """Of perplexity, as a share of the baseline's."""
        return self.perplexity / self.baseline - 1

    @property
    def is_good(self) -> bool:
        """Enough, and of weights that may be used without being asked for."""
        return self.num_tokens >= MIN_TOKENS and self.increase <= MAX_INCREASE


NO_EVIDENCE: Mapping[str, Evidence] = MappingProxyType({})


def find_evidence(card: ModelCard) -> dict[str, Evidence]:
    """The latest evaluations of this model, by `weights`: of this machine, else, or if these are of too few
    tokens, what is known.
    """
    found = {weights: _find(card, scheme) for weights, scheme in SCHEMES.items()}
    return {weights: evidence for weights, evidence in found.items() if evidence is not None}


def _find(card: ModelCard, scheme: str) -> Evidence | None:
    known = KNOWN.get((card.reference, scheme))
    try:
        found = msgspec.json.decode(_record(card, scheme).read_bytes(), type=Evidence)
    except (OSError, msgspec.DecodeError):
        return known
    return found if known is None or found.num_tokens >= MIN_TOKENS else known


def save_evidence(card: ModelCard, evidence: Evidence) -> Path:
    """In the place of any earlier one. Raises OSError."""
    path = _record(card, evidence.scheme)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(evidence)))
    draft.replace(path)
    return path


def _record(card: ModelCard, scheme: str) -> Path:
    files = f"{card.reference}\n{size_bytes(card)}\n{scheme}"
    return models_folder().parent / "evals" / f"{hashlib.sha256(files.encode()).hexdigest()[:20]}.json"


_KNOWN = (
    Evidence(
        reference=DEFAULT_REFERENCE,
        scheme="int8 per output, activations int8 in groups of 32",
        against="fp32",
        num_tokens=24_528,
        perplexity=42.7754,
        baseline=42.5222,
        agreement=0.9346,
    ),
    Evidence(
        reference=DEFAULT_REFERENCE,
        scheme="the file's own blocks, activations int8 in groups of 32",
        against="bf16",
        num_tokens=24_528,
        perplexity=31.4680,
        baseline=31.3780,
        agreement=0.9609,
    ),
)
KNOWN = {(evidence.reference, evidence.scheme): evidence for evidence in _KNOWN}
"""By reference and scheme. Measured on this project's docs/*.md as they were then, 24,576 tokens."""
