"""Equivalence: what two stages that are fed the same must say alike, and what each may say its own way.

A message is taken apart into facts. Facts of one key are put together in the order in which they were said:
what is a list follows on, what is a number is added. Two stages are equivalent where all keys come to the
same. So what must keep its order shares a key; what need not has keys of its own; what does not matter, none.

A stage declares one as its `equivalence`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pipeline.runtime.by_request import by_request
from pipeline.runtime.facts import Ended, Fact, Key, name_of, plain

__all__ = ["BY_REQUEST", "MESSAGES", "Ended", "Equivalence", "Fact", "Key"]


@dataclass(frozen=True)
class Equivalence:
    """See the module. One of your own needs no more than a function."""

    what: str
    """What must be alike, in words."""
    facts: Callable[[object], Iterable[Fact]]
    """Of one message that the stage has given; must be a pure function of it."""


def whole_messages(message: object) -> Iterator[Fact]:
    """The messages of each type, in their order."""
    yield Key(name_of(message)), [plain(message)]


MESSAGES = Equivalence("the messages of each type, one by one, in all fields but times", whole_messages)
BY_REQUEST = Equivalence(
    "what each request is answered: tokens, text (joined), counts, how it ends, in this order", by_request
)
