"""What the stages of the text side know between two batches, in words that any implementation can take up.

One stage tells these to whoever takes its place: detokenize `DetokenizeState`, filter `FilterState`, stream
`StreamState`. They are values: nothing in them changes after they were told, but for what an Answer is. Where
no request is live, each is what it is without arguments.
"""

import msgspec

from pipeline.core.answer import Answer
from pipeline.core.reasoning import ReasoningState
from pipeline.messages import Started, TextBatch


class TextState(msgspec.Struct, frozen=True):
    """One live request in detokenize."""

    started: Started
    held_bytes: bytes = b""
    """Of tokens so far: the beginning of a character that is not complete."""
    has_text: bool = False
    """There was text: spaces that a tokenizer puts before a text are not to come any more."""
    num_unwatched: int = 0
    """Tokens still to come whose text passes whatever stop strings are in it: what is left of min_tokens."""
    held_text: str = ""
    """May be the beginning of a stop string."""
    reasoning: ReasoningState | None = None
    """Where stop strings count outside of reasoning alone (`unstopped`); None: it has got no text yet."""

    @classmethod
    def of(cls, started: Started) -> "TextState":
        """One that has got no token yet."""
        return cls(started, num_unwatched=started.min_tokens)


class DetokenizeState(msgspec.Struct, frozen=True):
    texts: tuple[TextState, ...] = ()
    """Of every request from its Started to its terminal row, or to its stop string."""


class FilteredText(msgspec.Struct, frozen=True):
    """One live request in filter."""

    request_id: int
    tenant: str
    before: str = ""
    """The last character that has left, as far as a rule may ask for it (word boundaries)."""
    held: str = ""
    """What a match may begin with: it has not left."""


class FilterState(msgspec.Struct, frozen=True):
    texts: tuple[FilteredText, ...] = ()
    """Of every request from its Started to its terminal row, those without rules included: others may have
    some for them."""
    stopped: tuple[int, ...] = ()
    """Requests that a rule has ended, and whose terminal row is still to come."""


class StreamState(msgspec.Struct, frozen=True):
    answers: tuple[Answer, ...] = ()
    """Of every request from its Open to its ending; given away, but for their sinks."""
    step: TextBatch | None = None
    """The latest that came, and"""
    taken_ns: int = 0
    """when."""
