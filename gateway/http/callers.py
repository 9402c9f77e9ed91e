"""Who calls: a user with a token, who sees what is theirs, or a reader, who sees everything."""

from typing import Any, Final, cast

from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.handlers import BaseRouteHandler
from litestar.types import Scope

from headwater.gateway.http.keys import bearer_of, brought_by, has_key
from headwater.gateway.http.problems import Problem
from headwater.gateway.http.wrong_keys import check_key
from headwater.gateway.tokens.verifier import TokenRefused, Verifier

_Connection = ASGIConnection[Any, Any, Any, Any]

#: Where a request's scope keeps the user, once the guard has let it in.
_DOTS_OF_TOKEN: Final = 2
_USER: Final = "headwater_user"


class Callers:
    """Guards of Litestar's for routes under /v1."""

    def __init__(self, read_key: str, tokens: Verifier | None) -> None:
        self._read_key = read_key
        self._tokens = tokens

    async def users_only(self, connection: _Connection, _handler: BaseRouteHandler) -> None:
        """Lets users in.

        Errors: Problem, KeysUnavailable; here and below.
        """
        user_id = await self._user(connection.headers, "a user's token")
        connection.scope["state"][_USER] = user_id

    async def users_and_readers(self, connection: _Connection, _handler: BaseRouteHandler) -> None:
        """Lets users in, and readers, who are no user."""
        user_id = None
        right = has_key(connection.headers, self._read_key)
        brought = brought_by(connection.headers)
        if right or not _is_token(brought):
            check_key(connection, "read", brought, right=right)
        if not right:
            user_id = await self._user(
                connection.headers,
                "the readers' key, as Authorization: Bearer or in the header x-api-key, or a "
                "user's token",
            )
        connection.scope["state"][_USER] = user_id

    async def _user(self, headers: Headers, wanted: str) -> str:
        token = bearer_of(headers)
        if not token:
            raise Problem("unauthorized", f"expected {wanted}, as Authorization: Bearer")
        if self._tokens is None:
            raise Problem(
                "unauthorized",
                f"expected {wanted}; tokens are not taken here, for HEADWATER_JWKS is not set",
            )
        try:
            return await self._tokens.user_of(token)
        except TokenRefused as error:
            raise Problem(
                "unauthorized", f"expected {wanted}, found one refused: {error}"
            ) from None


def _is_token(text: str) -> bool:
    """Whether it may be a user's token, which nobody can guess: three parts, signed."""
    return text.count(".") == _DOTS_OF_TOKEN


def user_or_reader(scope: Scope) -> str | None:
    """The user who calls; None for a reader."""
    return cast("str | None", scope["state"][_USER])


def user_of(scope: Scope) -> str:
    """The user who calls a route that is for users only."""
    return cast("str", scope["state"][_USER])
