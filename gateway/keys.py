"""Who may read and who may operate: guards that compare keys in constant time."""

from hmac import compare_digest
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from gateway.problems import Problem

_Connection = ASGIConnection[Any, Any, Any, Any]


def operators_only(key: str) -> Guard:
    """A guard that asks for the operators' key in x-admin-key."""
    expected = key.encode()

    def guard(connection: _Connection, _handler: BaseRouteHandler) -> None:
        given = connection.headers.get("x-admin-key", "")
        if not compare_digest(given.encode(), expected):
            raise Problem("unauthorized", "expected the operators' key in the header x-admin-key")

    return guard


def readers_only(key: str) -> Guard:
    """A guard that asks for the readers' key as a bearer token, or in x-api-key."""
    expected = key.encode()

    def guard(connection: _Connection, _handler: BaseRouteHandler) -> None:
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else ""
        given = bearer or connection.headers.get("x-api-key", "")
        if not compare_digest(given.encode(), expected):
            raise Problem(
                "unauthorized",
                "expected the readers' key, as Authorization: Bearer or in the header x-api-key",
            )

    return guard
