"""Reasoning: the part of an answer in which a model thinks aloud, between tags of its own, such as <think>.

Only what an answer begins with is reasoning: tags in the middle of a text are text.
"""

from typing import Literal, NamedTuple

import msgspec

from pipeline.core.stops import StopMatcher


class ReasoningTags(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model's own."""

    opening: str = "<think>"
    closing: str = "</think>"
    starts_open: bool = False
    """The chat template has written the opening tag: the answer begins inside."""
    stops_inside: bool = False
    """Stop strings end a request where it reasons, too."""


class ReasoningState(msgspec.Struct, frozen=True):
    """Where one answer is among its tags."""

    is_inside: bool
    may_open: bool
    """All text so far is white space or the beginning of an opening tag."""
    held: str = ""
    """Text that may be the beginning of a tag: nobody has seen it yet."""


class ThoughtfulStopMatcher:
    """A StopMatcher of the answer alone: what is reasoned passes, stop strings and all (trap 13)."""

    def __init__(self, splitter: "ReasoningSplitter", stops: StopMatcher) -> None:
        self._splitter = splitter
        self._stops = stops

    @property
    def is_stopped(self) -> bool:
        return self._stops.is_stopped

    @property
    def held(self) -> str:
        """See StopMatcher."""
        return self._stops.held

    @property
    def num_unwatched(self) -> int:
        """See StopMatcher."""
        return self._stops.num_unwatched

    @property
    def reasoning(self) -> ReasoningState:
        """Where the answer is."""
        return self._splitter.state

    def push(self, text: str) -> str:
        """See StopMatcher."""
        return self._passed(self._splitter.push(text))

    def flush(self) -> str:
        return self._passed(self._splitter.flush()) + ("" if self.is_stopped else self._stops.flush())

    def _passed(self, parts: "list[Part]") -> str:
        passed = ""
        for part in parts:
            passed += self._stops.push(part.text) if part.kind == "content" else part.text
            if self.is_stopped:
                break
        return passed


class Part(NamedTuple):
    kind: Literal["reasoning", "content", "tag"]
    text: str


class ReasoningSplitter:
    """One answer's text, in pieces. The parts' texts, one after the other, are the text; it does not matter
    how the text is cut. Held back is only what may be the beginning of a tag.

    Args:
        state: to go on from; None: the answer begins.
    """

    def __init__(self, tags: ReasoningTags, state: ReasoningState | None = None) -> None:
        self._tags = tags
        state = state or ReasoningState(is_inside=tags.starts_open, may_open=not tags.starts_open)
        self._is_inside, self._may_open, self._held = state.is_inside, state.may_open, state.held

    @property
    def state(self) -> ReasoningState:
        return ReasoningState(self._is_inside, self._may_open, self._held)

    def push(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        if self._may_open:
            self._open(parts)
        if self._is_inside:
            self._close(parts)
        if not (self._is_inside or self._may_open):
            self._take(parts, "content", len(self._held))
        return parts

    def flush(self) -> list[Part]:
        """The text has ended."""
        parts: list[Part] = []
        self._take(parts, "reasoning" if self._is_inside else "content", len(self._held))
        return parts

    def _open(self, parts: list[Part]) -> None:
        begin = self._held.lstrip()
        if begin.startswith(self._tags.opening):
            self._may_open, self._is_inside = False, True
            self._take(parts, "tag", len(self._held) - len(begin) + len(self._tags.opening))
        elif not self._tags.opening.startswith(begin):
            self._may_open = False

    def _close(self, parts: list[Part]) -> None:
        at = self._held.find(self._tags.closing)
        if at < 0:
            self._take(parts, "reasoning", len(self._held) - _num_begun(self._held, self._tags.closing))
            return
        self._take(parts, "reasoning", at)
        self._take(parts, "tag", len(self._tags.closing))
        self._is_inside = False

    def _take(self, parts: list[Part], kind: Literal["reasoning", "content", "tag"], size: int) -> None:
        if size:
            parts.append(Part(kind, self._held[:size]))
            self._held = self._held[size:]


def _num_begun(text: str, tag: str) -> int:
    """Characters at the text's end that the tag may have begun with."""
    longest = min(len(text), len(tag) - 1)
    return next((size for size in range(longest, 0, -1) if tag.startswith(text[-size:])), 0)
