"""Guards for API keys, which are compared in constant time."""

from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final, cast

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard, Scope

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.wrong_keys import check_key

_Connection = ASGIConnection[Any, Any, Any, Any]

#: Key of the scope under which the id of a request's valid key is stored.
_ADMITTED: Final = "headwater.admitted_key"
_KEYS_SCOPE: Final = "headwater.scope_of_keys"
_DIGITS: Final = 8


def key_id(kind: str, key: str) -> str:
    """Return an id of a key that does not reveal it: its kind, and a prefix of its SHA-256."""
    return f"{kind}:{sha256(key.encode(errors='replace')).hexdigest()[:_DIGITS]}"


def admit(scope: Scope, key: str, keys_scope: str = "") -> None:
    """Record in the scope that a request presented a valid key.

    Args:
        scope: The request's scope.
        key: Id of the key.
        keys_scope: Scope of the caller's idempotency keys; empty if only one caller has the key.
    """
    state = cast("dict[str, Any]", scope)
    state[_ADMITTED] = key
    state[_KEYS_SCOPE] = keys_scope


def admitted_key(scope: Scope) -> str | None:
    """Return the id of the valid key that a request presented, if any."""
    return cast("dict[str, Any]", scope).get(_ADMITTED)


def scoped_key(scope: Scope, key: str) -> str:
    """Return an idempotency key that is unique to the caller.

    An empty key stays empty. Callers' keys contain no spaces.
    """
    keys_scope = cast("dict[str, Any]", scope)[_KEYS_SCOPE]
    return f"{keys_scope} {key}" if key and keys_scope else key


def operators_only(key: str) -> Guard:
    """Return a guard that requires the operators' key in x-admin-key."""
    operator = key_id("admin", key)

    def guard(connection: _Connection, _handler: BaseRouteHandler) -> None:
        if not is_operator(connection, key):
            raise operator_key_required()
        admit(connection.scope, operator)

    return guard


def operator_key_required() -> Problem:
    """Return the problem of a request without the operators' key."""
    return Problem("unauthorized", "expected the operators' key in the header x-admin-key")


def is_operator(connection: _Connection, key: str) -> bool:
    """Whether a request presents the operators' key.

    Raises:
        Problem: Too many wrong keys came from its address.
    """
    presented = connection.headers.get("x-admin-key", "")
    right = compare_digest(presented.encode(), key.encode())
    check_key(connection, "admin", presented, right=right)
    return right


def bearer_of(headers: Mapping[str, str]) -> str:
    """Return the token in the header Authorization: Bearer; empty if there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def has_key(headers: Mapping[str, str], key: str) -> bool:
    """Whether a request presents a key, as Authorization: Bearer or in x-api-key.

    Either is accepted: a client that uses one of them for its own token has the other for the key.
    """
    expected = key.encode()
    # Always compare both, so that the time reveals nothing.
    by_token = compare_digest(bearer_of(headers).encode(), expected)
    by_header = compare_digest(headers.get("x-api-key", "").encode(), expected)
    return by_token or by_header


def presented_key(headers: Mapping[str, str]) -> str:
    """Return the key that a request presents, valid or not; empty if there is none."""
    return headers.get("x-api-key", "") or bearer_of(headers)


def programs_only(key: str) -> Guard:
    """Return a guard that requires the key of app hosts whose runs Headwater stores."""
    world = key_id("world", key)

    def guard(connection: _Connection, _handler: BaseRouteHandler) -> None:
        right = has_key(connection.headers, key)
        check_key(connection, "world", presented_key(connection.headers), right=right)
        if not right:
            raise Problem(
                "unauthorized",
                "expected the key of /v1/world, as Authorization: Bearer or in the header "
                "x-api-key",
            )
        admit(connection.scope, world)

    return guard
