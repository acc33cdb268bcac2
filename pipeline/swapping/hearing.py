"""Hearing: what the stage that serves says, and what its shadow says, taken apart and compared as it comes.

What the serving one sends is heard where it is taken from an inbox; of a message type that others send there
too nobody could say who sent it, so such types are not compared.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.messages import FinishReason
from pipeline.runtime.comparison import Comparison, Difference
from pipeline.runtime.equivalence import Ended, Equivalence, Fact
from pipeline.runtime.heard import heard
from pipeline.runtime.inbox import Inbox, Taken
from pipeline.topology import Graph

_NEVER_NS = 1 << 62


class Hearing:
    """Of one stage of a graph, from `begin` to `end`. `a` serves, `b` is the shadow.

    Args:
        of: the requests that count; None: all. Of a pool, whose instances go on with those of before.
    """

    def __init__(self, graph: Graph, name: str, equivalence: Equivalence, of: set[int] | None) -> None:
        self._facts = equivalence.facts
        self._comparison = Comparison(equivalence)
        self._targets = compared(graph, name)
        self._kinds = frozenset(kind for kinds in self._targets.values() for kind in kinds)
        self._of = of
        self._begin_ns = self._end_ns = _NEVER_NS
        self._is_closed = False
        self._ended: set[int] = set()
        """Requests that the serving one has ended."""
        self._said_by_b: list[object] = []
        self._taps: list[tuple[Inbox[Any], Callable[[Taken[Any]], None]]] = []

    def begin(self, at_ns: int, inboxes: Mapping[str, Inbox[Any]]) -> None:
        """What is sent from then on counts,"""
        self._begin_ns = at_ns
        for target, kinds in self._targets.items():
            inbox, tap = inboxes[target], self._tap_of(kinds)
            inbox.taps = (*inbox.taps, tap)
            self._taps.append((inbox, tap))

    def end(self, at_ns: int) -> None:
        """and from then on no more."""
        self._end_ns = at_ns

    @property
    def is_waiting(self) -> bool:
        """What was sent may still be in an inbox."""
        return any(inbox.stats().depth for inbox, _ in self._taps)

    def close(self) -> None:
        """Idempotent."""
        self._is_closed = True
        for inbox, tap in self._taps:
            inbox.taps = tuple(each for each in inbox.taps if each is not tap)
        self._taps.clear()

    def for_a(self, message: Any) -> Any:
        """The same; whom it is to answer by a sink lets us hear of it."""
        return heard(message, self._a_says)

    def for_b(self, message: Any) -> Any:
        return heard(message, self._said_by_b.append)

    def b_sends(self, message: object) -> None:
        """What the shadow sends goes nowhere else. It is compared later, so that this costs it nothing."""
        if type(message) in self._kinds or hasattr(message, "token_ids_sync"):
            self._said_by_b.append(message)

    def compare(self) -> None:
        """What the shadow has said so far."""
        said, self._said_by_b[:] = list(self._said_by_b), []
        for message in said:
            self._comparison.say("b", self._facts(message))

    @property
    def num_messages(self) -> dict[str, int]:
        """That each has said."""
        return dict(self._comparison.num_messages)

    def differences(self, *, is_whole: bool) -> list[Difference]:
        """What differs for good: where an answer has not ended, one may merely be ahead of the other.

        Args:
            is_whole: the shadow has said all that it had to say.
        """
        found = self._comparison.found()
        if not is_whole:
            return found
        rest = [each for each in self._comparison.differences() if each not in found]
        return found + [each for each in rest if each.request_id is None or each.request_id in self._ended]

    def _tap_of(self, kinds: frozenset[type]) -> Callable[[Taken[Any]], None]:
        def tap(taken: Taken[Any]) -> None:
            for message, sent_ns in zip(taken.messages, taken.sent_ns, strict=True):
                if type(message) in kinds and self._begin_ns <= sent_ns < self._end_ns:
                    self._a(message)

        return tap

    def _a_says(self, message: object) -> None:
        """To a sink, which outlives the shadow."""
        if self._end_ns == _NEVER_NS:
            self._a(message)

    def _a(self, message: object) -> None:
        if self._is_closed:
            return
        of = self._of
        facts = [fact for fact in self._facts(message) if of is None or fact[0].request_id in of]
        self._ended.update(_ended_by(facts))
        self._comparison.say("a", facts)


def compared(graph: Graph, name: str) -> dict[str, frozenset[type]]:
    """For each stage that it sends to, the types that nobody else sends there."""
    links = [link for link in graph.links if link.source == name]
    others = {(link.target, link.carries) for link in graph.links if link.source != name}
    return {
        target: frozenset(
            link.carries
            for link in links
            if link.target == target and (link.target, link.carries) not in others
        )
        for target in {link.target for link in links}
    }


def _ended_by(facts: list[Fact]) -> set[int]:
    return {
        key.request_id
        for key, part in facts
        if key.request_id is not None
        and isinstance(part, list)
        and part
        and isinstance(part[-1], (Ended, FinishReason))
    }
