"""Keys that were wrong, by the address that brought them: who guesses waits, longer each time.

The first wrong keys of an address are answered 401. After them the address is held for a time that
doubles with each further wrong key, and keys from it are answered 429 whether they are right or
not: a guess tells nothing meanwhile. A key that was right from that address before is not held, so
no one who shares an address can lock out who uses it. Nothing waits here, and memory is bounded.
"""

from collections import OrderedDict
from collections.abc import Callable
from math import ceil
from typing import Any, Final, NamedTuple

from litestar.connection import ASGIConnection
from litestar.types import Scope

from headwater.gateway.http.problems import Problem

#: Where an application's state keeps it.
STATE: Final = "wrong_keys"
#: Wrong keys of an address that cost it nothing: people mistype, and programs are set up wrongly.
_FREE: Final = 10
_LONGEST_S: Final = 60.0
#: Seconds without a wrong key after which an address is as new.
_FORGOTTEN_S: Final = 900.0
#: Addresses with wrong keys, and addresses with right ones, that are remembered; some 200 bytes.
_ADDRESSES_MAX: Final = 10_000


class _Wrong(NamedTuple):
    number: int
    last_s: float
    held_until_s: float


class WrongKeys:
    """Remembers wrong keys.

    Args:
        peer_of: Returns the address of a request, as a trusted proxy names it.
        clock_s: A clock, in seconds.
    """

    def __init__(self, peer_of: Callable[[Scope], str], clock_s: Callable[[], float]) -> None:
        self._peer_of = peer_of
        self._clock_s = clock_s
        self._wrong: OrderedDict[str, _Wrong] = OrderedDict()
        self._right: OrderedDict[tuple[str, str], None] = OrderedDict()

    @property
    def remembered(self) -> int:
        """How many addresses are remembered, with wrong keys and with right ones."""
        return len(self._wrong) + len(self._right)

    def check(self, scope: Scope, kind: str, *, right: bool) -> None:
        """Note whether a key was right, and refuse it while its address is held.

        Args:
            scope: The scope of the request that brought it.
            kind: Which key it is, or would be.
            right: Whether it is right.

        Raises:
            Problem: The address has to wait; it says for how long.
        """
        peer = self._peer_of(scope)
        if right and (peer, kind) in self._right:
            return
        held_s = self._held_s(peer)
        if held_s > 0:
            seconds = ceil(held_s)
            raise Problem(
                "too_many_requests",
                f"expected a right key, found too many wrong ones from {peer}; try again in "
                f"{seconds} s",
                headers={"retry-after": str(seconds)},
            )
        if right:
            self._right[peer, kind] = None
            _bound(self._right)
        else:
            self._note(peer)

    def _held_s(self, peer: str) -> float:
        wrong = self._wrong.get(peer)
        if wrong is None:
            return 0.0
        # A clock that is set back holds nobody for longer than the longest time.
        return min(wrong.held_until_s - self._clock_s(), _LONGEST_S)

    def _note(self, peer: str) -> None:
        now_s = self._clock_s()
        before = self._wrong.pop(peer, _Wrong(0, now_s, now_s))
        number = 1 if now_s - before.last_s > _FORGOTTEN_S else before.number + 1
        # The exponent is bounded: a float has no more than 2^1023.
        pause_s = min(_LONGEST_S, 2.0 ** min(number - _FREE, 10)) if number >= _FREE else 0.0
        self._wrong[peer] = _Wrong(number, now_s, now_s + pause_s)
        _bound(self._wrong)


def _bound(remembered: OrderedDict[Any, Any]) -> None:
    while len(remembered) > _ADDRESSES_MAX:
        remembered.popitem(last=False)


def check_key(
    connection: ASGIConnection[Any, Any, Any, Any], kind: str, brought: str, *, right: bool
) -> None:
    """Check a key that a request has brought; without one there is nothing to check.

    Raises:
        Problem: The address of the request has to wait.
    """
    wrong_keys: WrongKeys | None = connection.app.state.get(STATE)
    if brought and wrong_keys is not None:
        wrong_keys.check(connection.scope, kind, right=right)
