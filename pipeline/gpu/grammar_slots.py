"""Which slots' sequences a grammar constrains, and the masks of a step's rows that are among them.

A mask depends on the token before, so it is made when the step's forward pass is on its way, and waits for
the step that sampled that token: on the CPU it is there, on CUDA the device is done with it by then, or soon.
Steps without such rows pay a look at an empty dict.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from pipeline.gpu.device import Completion
from pipeline.gpu.kv.contexts import Ints
from pipeline.gpu.slot_rules import Words
from pipeline.grammar import CompiledGrammars, Constraint
from pipeline.messages import Admitted


class Constrained(NamedTuple):
    """The rows of a step that a grammar constrains."""

    rows: list[int]
    """Of the R that sample, and"""
    at: list[int]
    """of the M with rules."""
    constraints: list[Constraint]
    base: Words
    """[M, ceil(V / 32)]: what the rules allow without them; not to be changed."""


class GrammarSlots:
    """For a step: `admit`, `constrained`, `masks` while it runs, and `sampled` when it was launched.

    Args:
        grammars: shared with other workers; None: no request has one.
    """

    def __init__(self, vocab_size: int, grammars: CompiledGrammars | None) -> None:
        self._num_words = -(-vocab_size // 32)
        self._grammars = grammars
        self._constraints: dict[int, Constraint] = {}
        self._unread: deque[tuple[Constrained, Completion]] = deque()
        """Steps whose tokens the constraints have not been told of."""

    def admit(self, admitted: Iterable[Admitted]) -> None:
        for each in admitted:
            self._constraints.pop(each.slot, None)
            grammar = each.sampling.grammar
            if grammar is not None:
                assert self._grammars is not None, "who has no vocabulary is sent no grammar"
                output = each.token_ids[each.num_prompt_tokens :]
                self._constraints[each.slot] = self._grammars.open(grammar, output)

    def constrained(self, slots: Ints, ruled: Ints, mask: Words | None) -> Constrained | None:
        """None: no row is.

        Args:
            slots: [R], of the rows that sample.
            ruled: [M], which of them have rules, and
            mask: [M, ceil(V / 32)], what those allow already; None: all.
        """
        if not self._constraints:
            return None
        found = [(row, self._constraints.get(slot)) for row, slot in enumerate(slots.tolist())]
        rows = [row for row, constraint in found if constraint is not None]
        if not rows:
            return None
        base = np.full((len(ruled), self._num_words), -1, dtype=np.int32) if mask is None else mask
        constraints = [each for _, each in found if each is not None]
        return Constrained(rows, np.searchsorted(ruled, rows).tolist(), constraints, base)

    def masks(self, constrained: Constrained) -> tuple[Words, list[int]]:
        """[M, ceil(V / 32)] as LogitRules.mask; which of the R rows have failed. Waits for earlier steps."""
        self._read()
        words, failed = constrained.base.copy(), []
        for row, at, constraint in zip(*constrained[:3], strict=True):
            if not constraint.fill(words[at]):
                words[at] = constrained.base[at]
                failed.append(row)
        return words, failed

    def sampled(self, constrained: Constrained, completion: Completion) -> None:
        """The step's tokens are on their way."""
        self._unread.append((constrained, completion))

    def forget(self) -> None:
        """No step's tokens will come any more."""
        self._unread.clear()

    def _read(self) -> None:
        while self._unread:
            constrained, completion = self._unread.popleft()
            token_ids: list[int] = completion.results_sync()[0].tolist()
            for row, constraint in zip(constrained.rows, constrained.constraints, strict=True):
                constraint.accept(token_ids[row])
