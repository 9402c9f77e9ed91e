"""Sessions of the console: signed cookies with an expiry time.

The signing key is derived from the admin key, and no state is stored. So gateways with the same
admin key accept each other's sessions, and a changed key ends all sessions. Signing out deletes
the cookie.
"""

from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest
from hmac import new as keyed
from typing import Final

COOKIE: Final = "headwater_console"
#: Seconds of a session: a working day, but not until the next morning.
SESSION_S: Final = 12 * 60 * 60
#: Unix milliseconds have 13 digits until the year 2286; a longer number is not parsed.
_DIGITS_MAX: Final = 16


class Sessions:
    """Creates and verifies sessions.

    Args:
        operators_key: The admin key.
        clock: Returns Unix milliseconds.
    """

    def __init__(self, operators_key: str, clock: Callable[[], int]) -> None:
        self._operators_key = operators_key.encode()
        self._key = keyed(self._operators_key, b"headwater console session", sha256).digest()
        self._clock = clock

    def is_operators_key(self, key: str) -> bool:
        """Whether this is the admin key."""
        return compare_digest(key.encode(errors="replace"), self._operators_key)

    def new_cookie(self) -> str:
        """Return the cookie of a new session."""
        until = str(self._clock() + SESSION_S * 1000)
        return f"{until}.{self._signature('until', until)}"

    def is_valid(self, cookie: str) -> bool:
        """Whether a cookie has a valid signature and its session has not expired."""
        until, _, signature = cookie.partition(".")
        if not self._equal(signature, self._signature("until", until)):
            return False
        return until.isdecimal() and len(until) <= _DIGITS_MAX and int(until) > self._clock()

    def form_token(self, cookie: str) -> str:
        """Return the CSRF token of a session's forms."""
        return self._signature("form", cookie)

    def is_form_token(self, token: str, cookie: str) -> bool:
        """Whether a token is that of a session's forms."""
        return self._equal(token, self.form_token(cookie))

    def _signature(self, kind: str, text: str) -> str:
        return keyed(self._key, f"{kind}:{text}".encode(errors="replace"), sha256).hexdigest()

    @staticmethod
    def _equal(received: str, expected: str) -> bool:
        return compare_digest(received.encode(errors="replace"), expected.encode())
