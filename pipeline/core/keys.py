"""API keys: what one may do, and who it is. Kept as SHA-256, so that the file of them opens no door."""

import secrets
from collections.abc import Mapping
from datetime import date
from hashlib import sha256
from hmac import compare_digest
from typing import Annotated

import msgspec

from pipeline.core.allowance import Allowance

Count = Annotated[int, msgspec.Meta(ge=1)]
PREFIX = "sk-stageline-"
_SECRET_BYTES = 32


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of the file; its name there is that of its tenant, in logs and for fairness."""

    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    requests_per_min: Count | None = None
    tokens_per_min: Count | None = None
    """Of prompts and answers together."""
    max_concurrent: Count | None = None
    """Live requests; None, here and above: no limit of its own."""
    max_priority: int = 0
    """The highest that its requests may ask for."""
    expires: date | None = None
    """It is good before this day begins (UTC)."""


class Principal(msgspec.Struct, frozen=True):
    """Who asks, as far as the door knows, and what he may."""

    tenant: str = ""
    """Empty: nobody in particular; then each request's `user` field says."""
    max_priority: int | None = None
    """None, here and below: no limit of his own."""
    allowance: Allowance | None = None


NOBODY = Principal()


class KeyRing:
    """All keys of a server.

    A digest is found by a dict: what time that takes says something of digests only, and nobody can choose
    the digest of what he sends. The candidate is then compared in constant time.
    """

    def __init__(self, keys: Mapping[str, Key]) -> None:
        self._keys = {bytes.fromhex(key.sha256): key for key in keys.values()}
        self._principals = {
            bytes.fromhex(key.sha256): Principal(
                name,
                key.max_priority,
                Allowance(key.requests_per_min, key.tokens_per_min, key.max_concurrent),
            )
            for name, key in keys.items()
        }

    def find(self, secret: str, today: date) -> Principal | None:
        """Whose it is; None: nobody's, or not any more."""
        digest = _digest(secret)
        key = self._keys.get(digest)
        if key is None or not compare_digest(bytes.fromhex(key.sha256), digest):
            return None
        return self._principals[digest] if key.expires is None or today < key.expires else None


def new_secret() -> str:
    """A fresh key, to be shown once: 256 bits."""
    return PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def fingerprint(secret: str) -> str:
    """What is kept of it: SHA-256 in hex. Without salt or stretching: 256 random bits cannot be guessed."""
    return _digest(secret).hex()


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()
