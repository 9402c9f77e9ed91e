"""Sessions of the console: signed cookies, without state on the server."""

import base64
import binascii
from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest
from hmac import new as keyed
from typing import Final, TypeVar

import msgspec

from headwater.gateway.api.authentication import Caller
from headwater.processors.api_keys import scopes_of
from headwater.schemas.errors import PARSE_ERRORS

#: Seconds of a session: a working day, but not until the next morning.
SESSION_S: Final = 12 * 60 * 60

ContentT = TypeVar("ContentT", bound=msgspec.Struct)


class Session(msgspec.Struct, frozen=True, omit_defaults=True):
    """Content of a session's cookie.

    Attributes:
        key_id: Id of the key, or of the person, in the audit log.
        until_ms: When it ends, in Unix milliseconds.
        name: Name of a person.
        role: Role of a person; a key has its own scopes, and may be revoked.
    """

    key_id: str
    until_ms: int
    name: str = ""
    role: str = ""


class Sessions:
    """Creates and verifies sessions.

    The signing key is derived from the admin key, and no state is stored. So gateways with the same
    admin key accept each other's sessions, and a changed key ends all sessions. Signing out deletes
    the cookie.

    Args:
        operators_key: The admin key.
        clock: Returns Unix milliseconds.
        caller_with_id: Returns the caller with the id of a key, if the key is valid now.
    """

    def __init__(
        self,
        operators_key: str,
        clock: Callable[[], int],
        caller_with_id: Callable[[str], Caller | None],
    ) -> None:
        self._key = keyed(operators_key.encode(), b"headwater console session", sha256).digest()
        self._clock = clock
        self._caller_with_id = caller_with_id

    def new_cookie(self, caller: Caller, role: str = "") -> str:
        """Return the cookie of a new session; a person has a role, a key does not need one."""
        until_ms = self._clock() + SESSION_S * 1000
        name = caller.name if role else ""
        return self.signed(Session(caller.key_id, until_ms, name, role))

    def caller(self, cookie: str) -> Caller | None:
        """Return whom a cookie belongs to, if its session has not ended."""
        session = self.read(cookie, Session)
        if session is None or session.until_ms <= self._clock():
            return None
        if session.role:
            scopes = scopes_of(session.role, ())
            return Caller(session.key_id, scopes, session.key_id, session.name)
        return self._caller_with_id(session.key_id)

    def signed(self, content: msgspec.Struct) -> str:
        """Return a text with a content, signed for its kind."""
        text = base64.urlsafe_b64encode(msgspec.json.encode(content)).rstrip(b"=").decode()
        return f"{text}.{self._signature(type(content).__name__, text)}"

    def read(self, signed: str, kind: type[ContentT]) -> ContentT | None:
        """Return the content of a signed text; None if the signature is not that of its kind."""
        text, _, signature = signed.partition(".")
        if not self._equal(signature, self._signature(kind.__name__, text)):
            return None
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(f"{text}==="), type=kind)
        except (binascii.Error, *PARSE_ERRORS):
            return None

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
