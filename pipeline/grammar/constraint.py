"""Constraint: one sequence on its way through a grammar."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from llguidance import LLMatcher

Words = npt.NDArray[np.int32]


class Constraint:
    """Used by one thread. What goes wrong in the grammar is its own end, and nobody else's.

    Args:
        compiled: the grammar at its beginning, as CompiledGrammars has it.
        end_ids: the model's own ends; a token among them is the last that counts.
        token_ids: the output so far, of a sequence that was preempted.
    """

    def __init__(
        self, compiled: "Future[LLMatcher]", end_ids: frozenset[int], token_ids: Sequence[int] = ()
    ) -> None:
        self._compiled = compiled
        self._end_ids = end_ids
        self._matcher: LLMatcher | None = None
        self._untaken = list(token_ids)
        self._has_ended = False

    def accept(self, token_id: int) -> None:
        """It is the sequence's next."""
        self._untaken.append(token_id)

    def fill(self, words: Words) -> bool:
        """Set bit i of word w where token 32 w + i may come next; words is [ceil(V / 32)] and contiguous.

        Waits for the compilation. False: the grammar has failed, and all is left as it is.
        """
        try:
            matcher = self._follow()
            if self._has_ended:
                return True
            matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
            return not matcher.is_error()
        except Exception:  # of the compilation: to be told by False, once a step
            return False

    def _follow(self) -> "LLMatcher":
        if self._matcher is None:
            self._matcher = self._compiled.result().deep_copy()
        for token_id in self._untaken:
            self._has_ended = self._has_ended or token_id in self._end_ids
            if not self._has_ended:
                self._matcher.consume_token(token_id)
        self._untaken.clear()
        return self._matcher
