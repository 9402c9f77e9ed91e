"""Authentication of callers: a user with a token sees their own data, a reader sees all data."""

from typing import Any, Final, cast

from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.handlers import BaseRouteHandler
from litestar.types import Scope

from headwater.gateway.api.keys import bearer_of, has_key, presented_key
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.tokens.verifier import TokenRefused, Verifier
from headwater.gateway.api.wrong_keys import check_key

_Connection = ASGIConnection[Any, Any, Any, Any]

_DOTS_OF_TOKEN: Final = 2
#: Key of the authenticated user in the scope's state.
_USER: Final = "headwater_user"


class Callers:
    """Litestar guards for routes under /v1."""

    def __init__(self, read_key: str, tokens: Verifier | None) -> None:
        self._read_key = read_key
        self._tokens = tokens

    async def users_only(self, connection: _Connection, _handler: BaseRouteHandler) -> None:
        """Admit users.

        Raises:
            Problem: The token is missing or not valid.
            KeysUnavailable: The keys that verify tokens cannot be fetched.
        """
        user_id = await self._user(connection.headers, "a user's token")
        connection.scope["state"][_USER] = user_id

    async def users_and_readers(self, connection: _Connection, _handler: BaseRouteHandler) -> None:
        """Admit users and readers.

        Raises:
            Problem: Neither a valid token nor the readers' key was presented.
            KeysUnavailable: The keys that verify tokens cannot be fetched.
        """
        user_id = None
        right = has_key(connection.headers, self._read_key)
        presented = presented_key(connection.headers)
        if right or not _is_token(presented):
            check_key(connection, "read", presented, right=right)
        if not right:
            user_id = await self._user(
                connection.headers,
                "the readers' key, as Authorization: Bearer or in the header x-api-key, or a "
                "user's token",
            )
        connection.scope["state"][_USER] = user_id

    async def _user(self, headers: Headers, expected: str) -> str:
        token = bearer_of(headers)
        if not token:
            raise Problem("unauthorized", f"expected {expected}, as Authorization: Bearer")
        if self._tokens is None:
            raise Problem(
                "unauthorized",
                f"expected {expected}; tokens are not accepted, because HEADWATER_JWKS is not set",
            )
        try:
            return await self._tokens.user_of(token)
        except TokenRefused as error:
            raise Problem(
                "unauthorized", f"expected {expected}, found one refused: {error}"
            ) from None


def _is_token(text: str) -> bool:
    """Whether a text looks like a signed token (three parts), which cannot be guessed."""
    return text.count(".") == _DOTS_OF_TOKEN


def user_or_reader(scope: Scope) -> str | None:
    """Return the calling user; None for a reader."""
    return cast("str | None", scope["state"][_USER])


def user_of(scope: Scope) -> str:
    """Return the calling user of a route for users only."""
    return cast("str", scope["state"][_USER])
