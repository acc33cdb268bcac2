"""Terms: what a request asks of the scheduler beside its tokens, and whose request it is."""

from hashlib import sha256
from typing import get_args

from msgspec.structs import replace

from pipeline.core.retention import KvEviction
from pipeline.core.wire.fields import Fields, wrong
from pipeline.errors import RequestError
from pipeline.messages import Terms

MAX_PRIORITY = 1000
"""And -MAX_PRIORITY the least."""
MAX_WAIT_MS = 600_000
MIN_PATIENCE_MS = 100
"""Less than a request may take on a server that has nothing else to do."""
MAX_USER_CHARS = 512
MAX_SALT_CHARS = 256
MAX_KV_TOKENS = 1 << 24
KV_EVICTIONS: tuple[str, ...] = get_args(KvEviction)
_TENANT_CHARS = 16


def parse_terms(fields: Fields) -> Terms:
    """The fields `priority`, `ttft_target_ms`, `tpot_target_ms`, `patience_ms`, `user`, `cache_salt`,
    `cache_pin`, `kv_eviction`, `kv_budget` and `kv_sinks`.
    """
    return replace(
        parse_plain_terms(fields),
        ttft_target_ms=_milliseconds(fields, "ttft_target_ms"),
        tpot_target_ms=_milliseconds(fields, "tpot_target_ms"),
        cache_pin=fields.flag("cache_pin"),
        kv_eviction=_kv_eviction(fields),
        kv_budget=fields.integer("kv_budget", 1, MAX_KV_TOKENS),
        kv_sinks=fields.integer("kv_sinks", 0, MAX_KV_TOKENS),
    )


def parse_plain_terms(fields: Fields) -> Terms:
    """The fields `priority`, `patience_ms`, `user` and `cache_salt`: those that need no answer of tokens."""
    return Terms(
        tenant=tenant_of_user(_short_text(fields, "user", MAX_USER_CHARS)),
        priority=fields.integer("priority", -MAX_PRIORITY, MAX_PRIORITY) or 0,
        patience_ms=fields.maybe_number("patience_ms", MIN_PATIENCE_MS, MAX_WAIT_MS),
        cache_salt=_short_text(fields, "cache_salt", MAX_SALT_CHARS),
    )


def tenant_of_key(authorization: str | None) -> str:
    """The tenant that an `Authorization: Bearer` header (RFC 6750) stands for; empty without one.

    A digest: the key itself is kept nowhere.
    """
    return _tenant("key", bearer_of(authorization))


def bearer_of(authorization: str | None) -> str:
    """The key in an `Authorization: Bearer` header (RFC 6750); empty without one."""
    scheme, _, key = (authorization or "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def tenant_of_user(user: str) -> str:
    """The tenant that the field `user` stands for; empty without one."""
    return _tenant("user", user)


def _tenant(kind: str, name: str) -> str:
    """A name that says nothing of who it is; of a key and a user that read the same, two."""
    if not name:
        return ""
    digest = sha256(f"{kind}:{name}".encode("utf-8", "surrogatepass"))
    return f"{kind}-{digest.hexdigest()[:_TENANT_CHARS]}"


def _short_text(fields: Fields, name: str, max_chars: int) -> str:
    text = fields.text(name) or ""
    if len(text) > max_chars:
        raise RequestError(
            f"'{name}' must be at most {max_chars} characters, but has {len(text)}.",
            param=name,
            code="invalid_value",
        )
    return text


def _kv_eviction(fields: Fields) -> str:
    value = fields.take("kv_eviction")
    if value is None:
        return ""
    if value not in KV_EVICTIONS:
        raise wrong("kv_eviction", f"one of {', '.join(KV_EVICTIONS)}", value)
    return str(value)


def _milliseconds(fields: Fields, name: str) -> float | None:
    return fields.maybe_number(name, 0, MAX_WAIT_MS, above_low=True)
