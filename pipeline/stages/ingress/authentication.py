"""Authentication: who asks. Deny by default: a route that needs no key says so where it is added."""

import tomllib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from pipeline.core.keys import Key, KeyRing, Principal
from pipeline.core.wire import bearer_of, tenant_of_key
from pipeline.errors import ConfigError, RequestError
from pipeline.stages.ingress import subprotocol

PRINCIPAL = web.RequestKey("principal", Principal)

NO_KEY = RequestError(
    "An API key is needed: send it as 'Authorization: Bearer KEY'.", status=401, code="no_api_key"
)
WRONG_KEY = RequestError(
    "This API key is not known here, or has expired.", status=401, code="invalid_api_key"
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def authentication(
    keys: KeyRing | None, public: frozenset[Handler], sockets: frozenset[Handler] = frozenset()
) -> Middleware:
    """Leaves a Principal in each request, or answers 401. Without keys everybody may come in.

    Args:
        public: handlers of routes that need no key. What matches no route is none of them.
        sockets: those where a key may come as a subprotocol.
    """

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        authorization = request.headers.get("Authorization")
        is_socket = request.match_info.handler in sockets
        if is_socket and not bearer_of(authorization):
            authorization = f"Bearer {subprotocol.key_of(request)}"
        try:
            if keys is None or request.match_info.handler not in public:
                request[PRINCIPAL] = principal_of(keys, authorization)
        except RequestError as error:
            if not is_socket:
                raise
            return await subprotocol.refuse(request, error)
        return await handler(request)

    return authenticate


def principal_of(keys: KeyRing | None, authorization: str | None) -> Principal:
    """Whose requests carry this header. Raises RequestError 401."""
    if keys is None:
        return Principal(tenant_of_key(authorization))
    return _find(keys, bearer_of(authorization))


def _find(keys: KeyRing, secret: str) -> Principal:
    if not secret:
        raise NO_KEY
    principal = keys.find(secret, datetime.now(UTC).date())
    if principal is None:
        raise WRONG_KEY
    return principal


def read_keys(path: Path) -> dict[str, Key]:
    """The file of keys, a table each. Raises ConfigError that names table and field."""
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"keys_file = {str(path)!r}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"keys_file = {str(path)!r}: is not TOML: {error}") from error
    return {name: _key(path, name, table) for name, table in tables.items()}


def _key(path: Path, name: str, table: object) -> Key:
    try:
        return msgspec.convert(table, Key)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: key {name!r}: {error}") from error
