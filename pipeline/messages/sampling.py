"""How one request's tokens are chosen."""

from pipeline.messages.parts import Message


class SamplingParams(Message, frozen=True):
    """How one request's tokens are chosen. Checked at the door (core.wire), trusted from there on."""

    max_tokens: int | None = None
    """None until tokenize knows the prompt's length and fills it in."""
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    seed: int = 0
    """The door draws one where the client gave none; noise is keyed by (seed, position)."""
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
