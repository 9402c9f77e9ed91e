"""Sessions of the console: signed cookies, without state on the server."""

import base64
import binascii
from collections.abc import Awaitable, Callable
from hashlib import sha256
from hmac import compare_digest
from hmac import new as keyed
from typing import Final, NamedTuple, TypeVar

import msgspec

from headwater.gateway.api.authentication import Caller
from headwater.processors.api_keys import digest_of, scopes_of
from headwater.schemas.errors import PARSE_ERRORS

#: Seconds of a session: a working day, but not until the next morning.
SESSION_S: Final = 12 * 60 * 60
#: Hexadecimal digits of a digest in a cookie: 128 bits.
DIGEST_CHARS: Final = 32

ContentT = TypeVar("ContentT", bound=msgspec.Struct)


class Session(msgspec.Struct, frozen=True, omit_defaults=True):
    """Content of a session's cookie.

    Attributes:
        key_id: Id of the key, or of the person, in the audit log.
        until_ms: When it ends, in Unix milliseconds.
        text: Beginning of the SHA-256 of the text of the key that signed in: once that text is no
            longer accepted, after a rotation, the session ends.
        name: Name of a person.
        role: Role of a person; a key has its own scopes, and may be revoked.
    """

    key_id: str
    until_ms: int
    text: str = ""
    name: str = ""
    role: str = ""


class SignIn(NamedTuple):
    """Finds out who signs in.

    Attributes:
        find: Returns the caller with a key.
        caller_with_id: Returns the caller with the id of a key, if its text with the beginning of
            a SHA-256 is valid now.
        project: The project of this gateway.
    """

    find: Callable[[str], Awaitable[Caller | None]]
    caller_with_id: Callable[[str, str], Caller | None]
    project: str


class Sessions:
    """Creates and verifies sessions.

    The signing key is derived from the admin key and the project, and no state is stored. So
    gateways of a project accept each other's sessions, and a changed key ends all sessions.
    Signing out deletes the cookie.

    Args:
        operators_key: The admin key.
        sign_in: Finds callers.
        clock: Returns Unix milliseconds.
        has_people: Whether people can sign in; without that, their sessions have ended.
    """

    def __init__(
        self,
        operators_key: str,
        sign_in: SignIn,
        clock: Callable[[], int],
        *,
        has_people: bool,
    ) -> None:
        purpose = f"headwater console session {sign_in.project}"
        self._key = keyed(operators_key.encode(), purpose.encode(), sha256).digest()
        self._clock = clock
        self._caller_with_id = sign_in.caller_with_id
        self._has_people = has_people

    def new_cookie(self, caller: Caller, role: str = "", text: str = "") -> str:
        """Return the cookie of a new session: of a person and a role, or of a key and its text."""
        until_ms = self._clock() + SESSION_S * 1000
        name = caller.name if role else ""
        digest = digest_of(text)[:DIGEST_CHARS] if text else ""
        return self.signed(Session(caller.key_id, until_ms, digest, name, role))

    def caller(self, cookie: str) -> Caller | None:
        """Return whom a cookie belongs to, if its session has not ended."""
        session = self.read(cookie, Session)
        if session is None or session.until_ms <= self._clock():
            return None
        if session.role:
            if not self._has_people:
                return None
            scopes = scopes_of(session.role, ())
            return Caller(session.key_id, scopes, session.key_id, session.name)
        return self._caller_with_id(session.key_id, session.text)

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
