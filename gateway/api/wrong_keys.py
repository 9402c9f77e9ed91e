"""Rate limit for wrong keys by client address, against guessing.

The first wrong keys of an address are answered 401. After that the address is blocked for a time
that doubles with each further wrong key, and all its keys are answered 429, right or wrong, so that
guesses reveal nothing. A kind of key that was right from that address before is not blocked, so
clients that share an address cannot lock each other out. Requests never wait, and memory is
bounded.
"""

from collections import OrderedDict
from collections.abc import Callable
from math import ceil
from typing import Any, Final, NamedTuple

from litestar.connection import ASGIConnection
from litestar.types import Scope

from headwater.gateway.api.problems import Problem

#: Key of the application's state.
STATE: Final = "wrong_keys"
#: Wrong keys of an address without a delay: people mistype, and programs are misconfigured.
_FREE: Final = 10
_LONGEST_S: Final = 60.0
#: Seconds without a wrong key after which an address starts over.
_FORGOTTEN_S: Final = 900.0
#: Addresses with wrong keys, and addresses with right ones, that are kept; about 200 bytes each.
_ADDRESSES_MAX: Final = 10_000


class _Wrong(NamedTuple):
    number: int
    last_s: float
    blocked_until_s: float


class WrongKeys:
    """Counts wrong keys by client address.

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
    if presented and wrong_keys is not None:
        wrong_keys.check(connection.scope, kind, right=right)
