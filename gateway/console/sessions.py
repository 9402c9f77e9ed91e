"""Who is signed in: a cookie that says until when, signed with a key made of the operators' key.

Nothing is kept. Gateways that have the same key agree on who is signed in, and a changed key ends
all sessions. To sign out is to forget the cookie.
"""

from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest
from hmac import new as keyed
from typing import Final

COOKIE: Final = "headwater_console"
#: A working day, and not the next morning.
SESSION_S: Final = 12 * 60 * 60
#: A time in milliseconds has 13 digits until the year 2286; what is longer is not read at all.
_DIGITS_MAX: Final = 16


class Sessions:
    """Begins sessions and knows them again.

    Units:  the clock in Unix milliseconds.
    """

    def __init__(self, operators_key: str, clock: Callable[[], int]) -> None:
        self._operators_key = operators_key.encode()
        self._key = keyed(self._operators_key, b"headwater console session", sha256).digest()
        self._clock = clock

    def opens(self, key: str) -> bool:
        """Whether it is the operators' key."""
        return compare_digest(key.encode(errors="replace"), self._operators_key)

    def begin(self) -> str:
        """What the cookie of a new session holds."""
        until = str(self._clock() + SESSION_S * 1000)
        return f"{until}.{self._signature('until', until)}"

    def holds(self, cookie: str) -> bool:
        """Whether a cookie is one of ours, and its session has not ended."""
        until, _, signature = cookie.partition(".")
        if not self._same(signature, self._signature("until", until)):
            return False
        return until.isdecimal() and len(until) <= _DIGITS_MAX and int(until) > self._clock()

    def token(self, cookie: str) -> str:
        """What forms of a session carry: no page of somebody else's can know it."""
        return self._signature("form", cookie)

    def fits(self, token: str, cookie: str) -> bool:
        """Whether a form is one of this session's."""
        return self._same(token, self.token(cookie))

    def _signature(self, kind: str, text: str) -> str:
        return keyed(self._key, f"{kind}:{text}".encode(errors="replace"), sha256).hexdigest()

    @staticmethod
    def _same(given: str, expected: str) -> bool:
        return compare_digest(given.encode(errors="replace"), expected.encode())
