"""Grammars: what a request's text must be, as masks of the tokens that may come next.

`checker` says whether a grammar can be used, in a process of its own that it cannot hurt; `compiled` keeps
those that were found good, for the runner; `constraint` follows one sequence through one. The library behind
it is llguidance, an extra: docs/decisions/0030-structured-output.md.
"""

from importlib.util import find_spec

from pipeline.grammar.checker import GrammarChecker, GrammarRefused
from pipeline.grammar.compiled import CompiledGrammars
from pipeline.grammar.constraint import Constraint

__all__ = ["CompiledGrammars", "Constraint", "GrammarChecker", "GrammarRefused", "is_installed"]


def is_installed() -> bool:
    """Whether the extra is there: pip install 'stageline[structured]'."""
    return find_spec("llguidance") is not None
