"""Constraint: one sequence on its way through a grammar."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from llguidance import LLMatcher

Words = npt.NDArray[np.int32]
MAX_FRESH = 2
"""Grammars of its own that one sequence may come to need; past them it fails."""


class Constraint:
    """Used by one thread. What goes wrong in the grammar is its own end, and nobody else's.

    Args:
        compiled: the grammar at its beginning, as CompiledGrammars has it.
        compile_anew: copies of a compiled one share what they have learned of its lexer, and the limits on
            that; who runs into one goes on with a grammar of its own.
        end_ids: the model's own ends; a token among them is the last that counts.
        token_ids: the output so far, of a sequence that was preempted.
    """

    def __init__(
        self,
        compiled: "Future[LLMatcher]",
        compile_anew: "Callable[[], LLMatcher]",
        end_ids: frozenset[int],
        token_ids: Sequence[int] = (),
    ) -> None:
        self._compiled = compiled
        self._compile_anew = compile_anew
        self._end_ids = end_ids
        self._matcher: LLMatcher | None = None
        self._token_ids = list(token_ids)
        self._num_taken = 0
        self._num_fresh = 0
        self._has_ended = False

    def accept(self, token_id: int) -> None:
        """It is the sequence's next."""
        self._token_ids.append(token_id)

    def fill(self, words: Words) -> bool:
        """Set bit i of word w where token 32 w + i may come next; words is [ceil(V / 32)] and contiguous.

        Waits for the compilation. False: the grammar has failed; what is in `words` means nothing.
        """
        try:
            if self._matcher is None:
                self._matcher = self._compiled.result().deep_copy()
            return self._fill(self._matcher, words) or (
                self._num_fresh < MAX_FRESH and self._fill(self._start_again(), words)
            )
        except Exception:  # of the compilation, whatever it is: told by False, once a step
            return False

    def _fill(self, matcher: "LLMatcher", words: Words) -> bool:
        self._follow(matcher)
        if self._has_ended:
            return True
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        return not matcher.is_error()

    def _follow(self, matcher: "LLMatcher") -> None:
        for token_id in self._token_ids[self._num_taken :]:
            self._has_ended = self._has_ended or token_id in self._end_ids
            if not self._has_ended:
                matcher.consume_token(token_id)
        self._num_taken = len(self._token_ids)

    def _start_again(self) -> "LLMatcher":
        self._matcher = self._compile_anew()
        self._num_fresh += 1
        self._num_taken = 0
        return self._matcher
