"""Callers of requests, and a rate limit for wrong keys."""

from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from math import ceil
from typing import Any, Final, NamedTuple, cast

from litestar.connection import ASGIConnection
from litestar.types import Scope

from headwater.gateway.api.problems import Problem

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


def refuse(connection: ASGIConnection[Any, Any, Any, Any], refused_id: str) -> None:
    """Record a refused key or person, and slow its address down.

    Args:
        connection: The request.
        refused_id: Id of the key or person, for the audit log.

    Raises:
        Problem: The address of the request is blocked.
    """
    record: Callable[[Scope, str], None] | None = connection.app.state.get(RECORD_REFUSED)
    if record is not None:
        record(connection.scope, refused_id)
    wrong_keys: WrongKeys | None = connection.app.state.get(STATE)
    if wrong_keys is not None:
        wrong_keys.check(connection.scope, refused_id, right=False)


def accept(connection: ASGIConnection[Any, Any, Any, Any], accepted_id: str) -> None:
    """Record a valid key; from now on its address is not blocked for it.

    Raises:
        Problem: The address of the request is blocked.
    """
    wrong_keys: WrongKeys | None = connection.app.state.get(STATE)
    if wrong_keys is not None:
        wrong_keys.check(connection.scope, accepted_id, right=True)


# -- callers

_DIGITS: Final = 8


def key_id(kind: str, key: str) -> str:
    """Return an id of a key that does not reveal it: its kind, and a prefix of its SHA-256."""
    return f"{kind}:{sha256(key.encode(errors='replace')).hexdigest()[:_DIGITS]}"


class Caller(NamedTuple):
    """Authenticated sender of a request.

    Attributes:
        key_id: Id of the key in the audit log.
        scopes: What the key may do.
        keys_scope: Scope of the caller's idempotency keys; empty for the keys of the settings,
            which may be replaced without a new scope.
        name: Name of the key for people; empty for the keys of the settings.
        rate_limit: Requests per minute; 0 for the limit of the settings.
        expires_at_ms: When the key expires, Unix milliseconds; 0 for never.
    """

    key_id: str
    scopes: frozenset[str]
    keys_scope: str = ""
    name: str = ""
    rate_limit: int = 0
    expires_at_ms: int = 0


#: Keys of the scope under which the caller of a request is stored: after it was authenticated, and
#: by the console, whose requests do not arrive over the network.
_CALLER: Final = "headwater.caller"
_IN_PROCESS: Final = "headwater.in_process_caller"


def admit(scope: Scope, caller: Caller) -> None:
    """Record in the scope that a request came from a caller."""
    cast("dict[str, Any]", scope)[_CALLER] = caller


def caller_in(scope: Scope) -> Caller | None:
    """Return the caller of a request; None if it presented no valid key."""
    return cast("dict[str, Any]", scope).get(_CALLER)


def admitted_key(scope: Scope) -> str | None:
    """Return the id of the valid key that a request presented, if any."""
    caller = caller_in(scope)
    return None if caller is None else caller.key_id


def scoped_key(scope: Scope, key: str | None) -> str:
    """Return an idempotency key that is unique to the caller; empty without a key.

    Callers' keys contain no spaces.
    """
    caller: Caller = cast("dict[str, Any]", scope)[_CALLER]
    return f"{caller.keys_scope} {key}" if key and caller.keys_scope else key or ""


def call_in_process(scope: Scope, caller: Caller) -> None:
    """Let a request of this process act for a caller, without a key."""
    cast("dict[str, Any]", scope)[_IN_PROCESS] = caller


def in_process_caller(scope: Scope) -> Caller | None:
    """Return the caller that a request of this process acts for, if it is one."""
    return cast("dict[str, Any]", scope).get(_IN_PROCESS)
