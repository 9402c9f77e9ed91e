"""Who may read and who may operate: keys, compared in constant time."""

from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final, cast

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard, Scope

from headwater.gateway.http.problems import Problem
from headwater.gateway.http.wrong_keys import check_key

_Connection = ASGIConnection[Any, Any, Any, Any]

#: Where the scope of a request keeps whose key it has brought.
_ADMITTED: Final = "headwater.admitted_key"
_KEYS_SCOPE: Final = "headwater.scope_of_keys"
_DIGITS: Final = 8


def key_id(kind: str, key: str) -> str:
    """What names a key without telling it: its kind, and the beginning of its SHA-256."""
    return f"{kind}:{sha256(key.encode(errors='replace')).hexdigest()[:_DIGITS]}"


def admit(scope: Scope, key: str, keys_scope: str = "") -> None:
    """Remember that a request has brought a valid key.

    Args:
        scope: The request's scope.
        key: The id of its key.
        keys_scope: What idempotency keys of the caller are scoped by; empty where one caller holds
            the key.
    """
    known = cast("dict[str, Any]", scope)
    known[_ADMITTED] = key
    known[_KEYS_SCOPE] = keys_scope


def admitted_key(scope: Scope) -> str | None:
    """The id of the valid key that a request has brought, if it did."""
    return cast("dict[str, Any]", scope).get(_ADMITTED)


def scoped_key(scope: Scope, key: str) -> str:
    """Return an idempotency key as the caller's own: no other caller's can equal it.

    A key that is empty stays so. Callers' keys have no spaces.
    """
    keys_scope = cast("dict[str, Any]", scope)[_KEYS_SCOPE]
    return f"{keys_scope} {key}" if key and keys_scope else key


def operators_only(key: str) -> Guard:
    """A guard that asks for the operators' key in x-admin-key."""
    operator = key_id("admin", key)

    def guard(connection: _Connection, _handler: BaseRouteHandler) -> None:
        if not is_operator(connection, key):
            raise no_operator()
        admit(connection.scope, operator)

    return guard


def no_operator() -> Problem:
    """What is answered to whoever does not bring the operators' key."""
    return Problem("unauthorized", "expected the operators' key in the header x-admin-key")


def is_operator(connection: _Connection, key: str) -> bool:
    """Whether a request brings the operators' key.

    Raises:
        Problem: Too many wrong keys came from its address.
    """
    brought = connection.headers.get("x-admin-key", "")
    right = compare_digest(brought.encode(), key.encode())
    check_key(connection, "admin", brought, right=right)
    return right


def bearer_of(headers: Mapping[str, str]) -> str:
    """What a request brings as Authorization: Bearer; empty if it brings nothing."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def has_key(headers: Mapping[str, str], key: str) -> bool:
    """Whether a request brings a key, as Authorization: Bearer or in x-api-key.

    Either will do: whoever puts a token of their own into the one has the other for the key.
    """
    expected = key.encode()
    # Both are compared, whatever comes of the first: the time tells nothing.
    by_token = compare_digest(bearer_of(headers).encode(), expected)
    by_header = compare_digest(headers.get("x-api-key", "").encode(), expected)
    return by_token or by_header


def brought_by(headers: Mapping[str, str]) -> str:
    """What a request brings where keys are: empty if it brings nothing."""
    return headers.get("x-api-key", "") or bearer_of(headers)


def programs_only(key: str) -> Guard:
    """A guard that asks for the key of programs elsewhere whose runs are here."""
    world = key_id("world", key)

    def guard(connection: _Connection, _handler: BaseRouteHandler) -> None:
        right = has_key(connection.headers, key)
        check_key(connection, "world", brought_by(connection.headers), right=right)
        if not right:
            raise Problem(
                "unauthorized",
                "expected the key of /v1/world, as Authorization: Bearer or in the header "
                "x-api-key",
            )
        admit(connection.scope, world)

    return guard
