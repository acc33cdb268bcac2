"""Words on the command line: which are known, and what to say of one that is not."""

import difflib
from collections.abc import Iterable

from pipeline.errors import ConfigError
from pipeline.topology import WHOLE

MESSAGES = {link.carries.__name__: link.carries for link in WHOLE.links}
"""Every type of message that a link carries."""


def message_type(key: str, word: str) -> type:
    """The message of this name. Raises ConfigError with those that are near, and a line on each."""
    if word not in MESSAGES:
        listed = "".join(f"\n  {name:<18}{_summary(kind)}" for name, kind in sorted(MESSAGES.items()))
        raise _unknown(key, word, "message", MESSAGES, listed)
    return MESSAGES[word]


def stage_name(key: str, word: str, known: Iterable[str]) -> str:
    """The word, if it is one of these stages. Raises ConfigError."""
    known = list(known)
    if word not in known:
        raise _unknown(key, word, "stage", known, f" {', '.join(known)}")
    return word


def _unknown(key: str, word: str, what: str, known: Iterable[str], listed: str) -> ConfigError:
    names = {name.lower(): name for name in known}
    near = [names[each] for each in difflib.get_close_matches(word.lower(), names, 2)]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return ConfigError(f"{key} {word}: there is no such {what}.{hint} There are:{listed}")


def _summary(message: type) -> str:
    """The first line of what is said of it; where nothing is, the links that carry it."""
    links = (link for link in WHOLE.links if link.carries is message)
    ways = ", ".join(f"{link.source} -> {link.target}" for link in links)
    return (message.__doc__ or ways).splitlines()[0].rstrip(",")
