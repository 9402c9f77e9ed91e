"""Sessions of the console: signed cookies, without state on the server."""

import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
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
        admin_keys: The admin keys, the current one first; the signing keys derive from them.
    """

    find: Callable[[str], Awaitable[Caller | None]]
    caller_with_id: Callable[[str, str], Caller | None]
    project: str
    admin_keys: Sequence[str]


class Sessions:
    """Creates and verifies sessions.

    The signing keys are derived from the admin keys and the project, and no state is stored. So
    gateways of a project accept each other's sessions, and a removed key ends its sessions.
    Signing out deletes the cookie.

    Args:
        sign_in: Finds callers.
        clock: Returns Unix milliseconds.
        people_s: Seconds of a person's session; 0 if people cannot sign in, which also ends the
            sessions that they have.
    """

    def __init__(self, sign_in: SignIn, clock: Callable[[], int], *, people_s: int) -> None:
        purpose = f"headwater console session {sign_in.project}".encode()
        self._keys = [keyed(key.encode(), purpose, sha256).digest() for key in sign_in.admin_keys]
        self._clock = clock
        self._caller_with_id = sign_in.caller_with_id
        self._people_ms = people_s * 1000

    def new_cookie(self, caller: Caller, role: str = "", text: str = "") -> str:
        """Return the cookie of a new session: of a person and a role, or of a key and its text."""
        until_ms = self._clock() + (self._people_ms if role else SESSION_S * 1000)
        name = caller.name if role else ""
        digest = digest_of(text)[:DIGEST_CHARS] if text else ""
        return self.signed(Session(caller.key_id, until_ms, digest, name, role))

    def caller(self, cookie: str) -> Caller | None:
        """Return whom a cookie belongs to, if its session has not ended."""
        session = self.read(cookie, Session)
        if session is None or session.until_ms <= self._clock():
            return None
        if session.role:
            # Also if the time was longer when the session began.
            if session.until_ms > self._clock() + self._people_ms:
                return None
            scopes = scopes_of(session.role, ())
            return Caller(session.key_id, scopes, session.key_id, session.name)
        return self._caller_with_id(session.key_id, session.text)

    def signed(self, content: msgspec.Struct) -> str:
        """Return a text with a content, signed for its kind."""
        text = base64.urlsafe_b64encode(msgspec.json.encode(content)).rstrip(b"=").decode()
        return f"{text}.{self._signatures(type(content).__name__, text)[0]}"

    def read(self, signed: str, kind: type[ContentT]) -> ContentT | None:
        """Return the content of a signed text; None if the signature is not that of its kind."""
        text, _, signature = signed.partition(".")
        if not self._is_signature(signature, kind.__name__, text):
            return None
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(f"{text}==="), type=kind)
        except (binascii.Error, *PARSE_ERRORS):
            return None

    def form_token(self, cookie: str) -> str:
        """Return the CSRF token of a session's forms."""
        return self._signatures("form", cookie)[0]

    def is_form_token(self, token: str, cookie: str) -> bool:
        """Whether a token is that of a session's forms."""
        return self._is_signature(token, "form", cookie)

    def _signatures(self, kind: str, text: str) -> list[str]:
        """Return the signatures by all keys; that by the current key is the first."""
        signed = f"{kind}:{text}".encode(errors="replace")
        return [keyed(key, signed, sha256).hexdigest() for key in self._keys]

    def _is_signature(self, received: str, kind: str, text: str) -> bool:
        sent = received.encode(errors="replace")
        return any(
            compare_digest(sent, signature.encode()) for signature in self._signatures(kind, text)
        )
