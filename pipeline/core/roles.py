"""Roles: which rows each device worker computes."""

from enum import StrEnum


class Role(StrEnum):
    """What the steps of one worker hold."""

    BOTH = "both"
    """Prefill and decode mixed."""
    PREFILL = "prefill"
    """All that is known of a sequence, up to the next token; then it is handed over."""
    DECODE = "decode"
    """One token each of sequences that were handed over."""

    @property
    def admits(self) -> bool:
        """Waiting sequences join its steps."""
        return self is not Role.DECODE

    @property
    def decodes(self) -> bool:
        """Sequences stay on it until they end."""
        return self is not Role.PREFILL


SEPARATIONS: dict[str, tuple[Role, ...]] = {
    "mixed": (Role.BOTH,),
    "split": (Role.PREFILL, Role.DECODE),
}
"""The roles of the workers, in their order, by the setting `separation`."""
