"""How long answers become, learned from those that ended."""

from collections import OrderedDict, deque
from typing import Protocol, runtime_checkable

from pipeline.core.sequence import Sequence

RING = 64
"""Recent answers kept of each kind."""
MAX_RINGS = 4096
"""Kinds kept; the one that went longest without an answer is forgotten first."""
MIN_ANSWERS = 8
"""So many are needed before a kind predicts anything."""

Kind = tuple[str | None, int]
"""Tenant (None: all together) and size of the prompt, in powers of two."""


@runtime_checkable
class LengthPredictor(Protocol):
    """Says how long answers become."""

    def predict(self, sequence: Sequence) -> int:
        """Output tokens to expect of a new sequence in all: 1 to its max_tokens."""
        ...

    def observe(self, sequence: Sequence) -> None:
        """It came to its natural end: learn from `num_output_tokens`."""
        ...


class QuantileLengths:
    """A quantile of the latest answers to the same tenant's prompts of about the same size.

    Where these are too few, of all tenants'; where those are too few, max_tokens. Memory is bounded by
    MAX_RINGS * RING numbers. An answer that was cut off by its max_tokens counts with the length it got.
    """

    def __init__(self, quantile: float = 0.5) -> None:
        self._quantile = quantile
        self._rings: OrderedDict[Kind, deque[int]] = OrderedDict()

    def predict(self, sequence: Sequence) -> int:
        for kind in _kinds(sequence):
            ring = self._rings.get(kind, ())
            if len(ring) >= MIN_ANSWERS:
                length = sorted(ring)[int(self._quantile * (len(ring) - 1))]
                return max(1, min(length, sequence.max_tokens))
        return sequence.max_tokens

    def observe(self, sequence: Sequence) -> None:
        for kind in _kinds(sequence):
            self._rings.setdefault(kind, deque(maxlen=RING)).append(sequence.num_output_tokens)
            self._rings.move_to_end(kind)
        while len(self._rings) > MAX_RINGS:
            self._rings.popitem(last=False)


class JudgedLengths:
    """A predictor, and how wrong it has been: the mean error is error_tokens / num_judged."""

    def __init__(self, predictor: LengthPredictor, num_judged: int = 0, error_tokens: int = 0) -> None:
        self.num_judged = num_judged
        self.error_tokens = error_tokens
        """Absolute errors, all judged answers together."""
        self._predictor = predictor

    def predict(self, sequence: Sequence) -> None:
        """Fill in `predicted_tokens` of a new sequence."""
        sequence.predicted_tokens = self._predictor.predict(sequence)

    def observe(self, sequence: Sequence) -> None:
        """It came to its natural end."""
        self.num_judged += 1
        self.error_tokens += abs(sequence.predicted_tokens - sequence.num_output_tokens)
        self._predictor.observe(sequence)


def _kinds(sequence: Sequence) -> tuple[Kind, Kind]:
    size = sequence.num_prompt_tokens.bit_length()
    return (sequence.terms.tenant, size), (None, size)
