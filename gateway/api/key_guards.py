"""Guards of routes: a key with the scope of the route, or a user's token.

Every route that takes keys names the scope that a key needs. A user with a token sees their own
data, a reader sees all data.
"""

from collections.abc import Iterable, Mapping
from http import HTTPMethod
from typing import Final, NamedTuple, cast

from litestar.datastructures import Headers
from litestar.handlers import BaseRouteHandler
from litestar.types import Scope

from headwater.gateway.api.authentication import (
    Caller,
    accept,
    admit,
    in_process_caller,
    key_id,
    refuse,
)
from headwater.gateway.api.key_ring import KeyRing
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.rate_limits import RateLimits
from headwater.gateway.api.request_scope import AnyConnection, AsyncGuard
from headwater.gateway.api.tokens.key_source import KeysUnavailable
from headwater.gateway.api.tokens.verifier import TokenRefused, Verifier
from headwater.processors.api_keys import id_of

#: Option of a route: the scope that a key needs for it.
SCOPE: Final = "scope"


class ExpectedKey(NamedTuple):
    """The key of the settings that routes accept besides API keys with their scope.

    Attributes:
        kind: Kind of the key.
        text: Its name and the header, for errors.
    """

    kind: str
    text: str


OPERATORS: Final = ExpectedKey(
    "admin", "the operators' key, as Authorization: Bearer or in the header x-admin-key"
)
OPERATORS_OR_WORKFLOWS: Final = ExpectedKey(
    "admin", "the operators' key or the key of the workflow service, as Authorization: Bearer"
)
PROGRAMS: Final = ExpectedKey(
    "world", "the key of /v1/world, as Authorization: Bearer or in the header x-api-key"
)
WORKFLOWS: Final = ExpectedKey(
    "workflow",
    "the key of the workflow service, as Authorization: Bearer or in the header x-api-key",
)
TICKS: Final = ExpectedKey(
    "tick", "the tick key, as Authorization: Bearer or in the header x-api-key"
)
READERS: Final = ExpectedKey(
    "read",
    "the readers' key, as Authorization: Bearer or in the header x-api-key, or a user's token",
)


def scope_of(handler: BaseRouteHandler) -> str:
    """Return the scope that a route needs.

    Raises:
        RuntimeError: The route has none: it must not be served.
    """
    needed: str | None = handler.opt.get(SCOPE)
    if needed is None:
        raise RuntimeError(f"expected a route with a scope, found {handler}")
    return needed


def lists_methods(connection: AnyConnection) -> bool:
    """Whether a request lists the methods of a path, which the public description has, too."""
    return connection.scope.get("method") == HTTPMethod.OPTIONS


def bearer_of(headers: Mapping[str, str]) -> str:
    """Return the token in the header Authorization: Bearer; empty if there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def presented_keys(headers: Mapping[str, str]) -> list[str]:
    """Return the keys that a request presents, valid or not.

    All headers are accepted for all keys: a client that uses one for another service has the
    others.
    """
    texts = (headers.get("x-admin-key"), headers.get("x-api-key"), bearer_of(headers))
    return list(dict.fromkeys(text for text in texts if text))


class KeyGuard:
    """Authenticates requests by the keys that they present, and counts those of every key."""

    def __init__(self, ring: KeyRing, limits: RateLimits) -> None:
        #: The keys that are accepted.
        self.ring = ring
        self._limits = limits

    def requires(self, expected: ExpectedKey) -> AsyncGuard:
        """Return a guard that requires a key with the scope of the route."""

        async def guard(connection: AnyConnection, handler: BaseRouteHandler) -> None:
            await self.authenticate(connection, handler, expected)

        return guard

    def admits(self, connection: AnyConnection, needed: str) -> bool:
        """Whether a request presents a key that has a scope at this moment."""
        return _with_scopes(self._callers(connection), {needed}) is not None

    async def find(self, text: str) -> Caller | None:
        """Return the caller with a key, if it is valid now.

        Raises:
            Problem: It may be valid, but the API keys were not read yet.
        """
        caller = self.ring.find(text)
        if caller is None and await self.ring.refresh_for([text]):
            caller = self.ring.find(text)
        if caller is None:
            self._require_loaded([text])
        return caller

    async def authenticate(
        self,
        connection: AnyConnection,
        handler: BaseRouteHandler,
        expected: ExpectedKey,
        *further: str,
    ) -> None:
        """Admit the caller of a request, if its key has the scope of the route and further ones.

        Raises:
            Problem: There is no such key, its address presented too many wrong ones, or the key
                made too many requests.
        """
        if lists_methods(connection):
            return
        needed = {scope_of(handler), *further}
        presented = presented_keys(connection.headers)
        callers = self._callers(connection)
        if _with_scopes(callers, needed) is None and await self.ring.refresh_for(presented):
            callers = self._callers(connection)
        admitted = _with_scopes(callers, needed)
        if admitted is None:
            self._require_loaded(presented)
            self._count_guesses(connection, presented, expected)
            if not callers:
                raise Problem(
                    "unauthorized",
                    f"expected {expected.text}, or an API key with the scope {_listed(needed)}",
                )
        else:
            accept(connection, admitted.key_id)
        caller = admitted or callers[0]
        admit(connection.scope, caller)
        self._limits.count(connection.scope, caller)
        if admitted is None:
            raise insufficient_scope(caller, *needed - caller.scopes)

    def _callers(self, connection: AnyConnection) -> list[Caller]:
        """Return the callers whose keys a request presents; or whom it acts for in this process."""
        acting = in_process_caller(connection.scope)
        if acting is not None:
            return [acting]
        callers = map(self.ring.find, presented_keys(connection.headers))
        return [caller for caller in callers if caller is not None]

    def _require_loaded(self, presented: list[str]) -> None:
        if not self.ring.is_loaded and any(map(id_of, presented)):
            raise Problem("keys_unavailable", "The API keys were not read from Kafka yet.")

    def _count_guesses(
        self, connection: AnyConnection, presented: list[str], expected: ExpectedKey
    ) -> None:
        unknown = [text for text in presented if self.ring.find(text) is None]
        guesses = [text for text in unknown if not _is_token(text)]
        if guesses:
            refuse(connection, key_id(expected.kind, guesses[0]))


def _with_scopes(callers: list[Caller], needed: set[str]) -> Caller | None:
    return next((caller for caller in callers if needed <= caller.scopes), None)


def _listed(scopes: Iterable[str]) -> str:
    return " ".join(sorted(scopes))


def insufficient_scope(caller: Caller, *needed: str) -> Problem:
    """Return the problem of a key without scopes that a request needs."""
    missing = _listed(needed)
    scopes = sorted(caller.scopes)
    return Problem(
        "insufficient_scope",
        f"expected a key with the scope {missing}, found {caller.key_id} with "
        f"{', '.join(scopes) or 'none'}",
        headers={"www-authenticate": f'Bearer error="insufficient_scope", scope="{missing}"'},
        needed=sorted(needed),
        scopes=scopes,
    )


# -- users and readers


_DOTS_OF_TOKEN: Final = 2
#: Key of the authenticated user in the scope's state.
_USER: Final = "headwater_user"


class Callers:
    """Litestar guards for routes of users and readers."""

    def __init__(self, keys: KeyGuard, tokens: Verifier | None) -> None:
        self._keys = keys
        self._tokens = tokens

    async def users_only(self, connection: AnyConnection, _handler: BaseRouteHandler) -> None:
        """Admit users.

        Raises:
            Problem: The token is missing or not valid.
            KeysUnavailable: The keys that verify tokens cannot be fetched.
        """
        user_id = await self._user(connection.headers, "a user's token")
        connection.scope["state"][_USER] = user_id
        admit(connection.scope, Caller(key_id("user", user_id), frozenset()))

    async def users_and_readers(self, connection: AnyConnection, handler: BaseRouteHandler) -> None:
        """Admit users, and readers: holders of a key.

        Raises:
            Problem: Neither a valid token nor a key was presented.
            KeysUnavailable: The keys that verify tokens cannot be fetched.
        """
        user_id = None
        token = bearer_of(connection.headers)
        if lists_methods(connection):
            return
        if _is_token(token) and not self._keys.admits(connection, scope_of(handler)):
            user_id = await self._user(connection.headers, READERS.text)
        else:
            await self._keys.authenticate(connection, handler, READERS)
        connection.scope["state"][_USER] = user_id

    async def still_admits(self, connection: AnyConnection) -> bool:
        """Whether a user or reader that was admitted still is: tokens expire, keys are revoked."""
        if connection.scope["state"][_USER] is None:
            return self._keys.admits(connection, scope_of(connection.route_handler))
        try:
            await self._user(connection.headers, "a user's token")
        except (Problem, KeysUnavailable):
            return False
        return True

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
