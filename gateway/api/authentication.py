"""Authenticate requests by API key or a user's token, with a rate limit for wrong keys.

Keys are compared in constant time. A user with a token sees their own data, a reader sees all data.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import sha256
from hmac import compare_digest
from math import ceil
from typing import Any, Final, NamedTuple, cast

from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.handlers import BaseRouteHandler
from litestar.types import Scope

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_scope import AnyConnection, AsyncGuard
from headwater.gateway.api.tokens.key_source import KeysUnavailable
from headwater.gateway.api.tokens.verifier import TokenRefused, Verifier

#: Keys of the application's state: counter of wrong keys, and what records refused ones.
STATE: Final = "wrong_keys"
RECORD_REFUSED: Final = "record_refused_key"
#: Wrong keys of an address without a delay: people mistype, and programs are misconfigured.
_FREE: Final = 10
_LONGEST_S: Final = 60.0
#: Seconds without a wrong key after which an address starts over.
_FORGOTTEN_S: Final = 900.0
#: Addresses with wrong keys, and addresses with right ones, that are kept; an address takes about
#: 200 bytes.
_ADDRESSES_MAX: Final = 10_000


class _Wrong(NamedTuple):
    number: int
    last_s: float
    blocked_until_s: float


class WrongKeys:
    """Counts wrong keys by client address.

    The first wrong keys of an address are answered 401. After that the address is blocked for a
    time that doubles with every further wrong key, and all its keys are answered 429, right or
    wrong, so that guesses reveal nothing. A kind of key that was right from that address before is
    not blocked, so a client cannot lock out others that share its address. Requests never wait,
    and memory is bounded.

    Args:
        peer_of: Returns the client address of a request.
        clock_s: Returns seconds.
    """

    def __init__(self, peer_of: Callable[[Scope], str], clock_s: Callable[[], float]) -> None:
        self._peer_of = peer_of
        self._clock_s = clock_s
        self._wrong: OrderedDict[str, _Wrong] = OrderedDict()
        self._right: OrderedDict[tuple[str, str], None] = OrderedDict()

    @property
    def remembered(self) -> int:
        """Number of entries in memory."""
        return len(self._wrong) + len(self._right)

    def check(self, scope: Scope, kind: str, *, right: bool) -> None:
        """Record whether a key was right, and refuse it while its address is blocked.

        Args:
            scope: The request's scope.
            kind: Kind of the key.
            right: Whether the key is right.

        Raises:
            Problem: The address is blocked; it states for how long.
        """
        peer = self._peer_of(scope)
        if right and (peer, kind) in self._right:
            return
        blocked_s = self._blocked_s(peer)
        if blocked_s > 0:
            seconds = ceil(blocked_s)
            raise Problem(
                "too_many_requests",
                f"Too many wrong keys came from {peer}; try again in {seconds} s.",
                headers={"retry-after": str(seconds)},
            )
        if right:
            self._right[peer, kind] = None
            _bound(self._right)
        else:
            self._note(peer)

    def _blocked_s(self, peer: str) -> float:
        wrong = self._wrong.get(peer)
        if wrong is None:
            return 0.0
        # Even if the clock is set back, an address is not blocked for longer than the maximum.
        return min(wrong.blocked_until_s - self._clock_s(), _LONGEST_S)

    def _note(self, peer: str) -> None:
        now_s = self._clock_s()
        previous = self._wrong.pop(peer, _Wrong(0, now_s, now_s))
        number = 1 if now_s - previous.last_s > _FORGOTTEN_S else previous.number + 1
        # The exponent is bounded: a float cannot exceed 2^1023.
        pause_s = min(_LONGEST_S, 2.0 ** min(number - _FREE, 10)) if number >= _FREE else 0.0
        self._wrong[peer] = _Wrong(number, now_s, now_s + pause_s)
        _bound(self._wrong)


def _bound(remembered: OrderedDict[Any, Any]) -> None:
    while len(remembered) > _ADDRESSES_MAX:
        remembered.popitem(last=False)


def check_key(
    connection: ASGIConnection[Any, Any, Any, Any], kind: str, presented: str, *, right: bool
) -> None:
    """Record the key that a request presented, if any, and refuse it while its address is blocked.

    Raises:
        Problem: The address of the request is blocked.
    """
    wrong_keys: WrongKeys | None = connection.app.state.get(STATE)
    record: Callable[[Scope, str], None] | None = connection.app.state.get(RECORD_REFUSED)
    if presented and not right and record is not None:
        record(connection.scope, key_id(kind, presented))
    if presented and wrong_keys is not None:
        wrong_keys.check(connection.scope, kind, right=right)


# -- API keys


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


def operators_only(key: str) -> AsyncGuard:
    """Return a guard that requires the operators' key in x-admin-key."""
    operator = key_id("admin", key)

    async def guard(connection: AnyConnection, _handler: BaseRouteHandler) -> None:
        if not is_operator(connection, key):
            raise operator_key_required()
        admit(connection.scope, operator)

    return guard


def operator_key_required() -> Problem:
    """Return the problem of a request without the operators' key."""
    return Problem("unauthorized", "expected the operators' key in the header x-admin-key")


def is_operator(connection: AnyConnection, key: str) -> bool:
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


def programs_only(key: str) -> AsyncGuard:
    """Return a guard that requires the key of app hosts with runs that Headwater stores."""
    world = key_id("world", key)

    async def guard(connection: AnyConnection, _handler: BaseRouteHandler) -> None:
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


# -- users and readers


_DOTS_OF_TOKEN: Final = 2
#: Key of the authenticated user in the scope's state.
_USER: Final = "headwater_user"


class Callers:
    """Litestar guards for routes under /v1."""

    def __init__(self, read_key: str, tokens: Verifier | None) -> None:
        self._read_key = read_key
        self._tokens = tokens

    async def users_only(self, connection: AnyConnection, _handler: BaseRouteHandler) -> None:
        """Admit users.

        Raises:
            Problem: The token is missing or not valid.
            KeysUnavailable: The keys that verify tokens cannot be fetched.
        """
        user_id = await self._user(connection.headers, "a user's token")
        connection.scope["state"][_USER] = user_id
        admit(connection.scope, key_id("user", user_id))

    async def users_and_readers(
        self, connection: AnyConnection, _handler: BaseRouteHandler
    ) -> None:
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

    async def still_admits(self, connection: AnyConnection) -> bool:
        """Whether a user or reader that was admitted still is: tokens expire."""
        if connection.scope["state"][_USER] is None:
            return has_key(connection.headers, self._read_key)
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
