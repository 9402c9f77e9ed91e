"""Sign-in with an OpenID provider: the authorization code flow with PKCE (RFC 6749, RFC 7636).

The provider's addresses and keys come from its discovery document. What a sign-in must remember
until the browser returns is in a signed cookie, so gateways store nothing. The id token is verified
like the tokens of users; its claims name the role.
"""

import asyncio
import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from hmac import compare_digest
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote_plus, urlencode

import httpx2
import msgspec

from headwater.gateway.api.tokens.key_set import KeySetInvalid
from headwater.gateway.api.tokens.key_source import KeySource
from headwater.gateway.api.tokens.verifier import TokenRefused, Verifier
from headwater.gateway.settings.exposure import is_plain_http
from headwater.gateway.settings.sign_in import OidcOptions
from headwater.processors.api_keys import Role
from headwater.schemas.errors import PARSE_ERRORS

#: Seconds that a person may take to sign in at the provider.
PENDING_S: Final = 600
_RANDOM_BYTES: Final = 32
_TIMEOUT_S: Final = 5.0
#: Seconds after which the discovery document is read again.
_FRESH_S: Final = 3600.0
#: Least seconds between two attempts: any client may begin a sign-in.
_READ_INTERVAL_S: Final = 2.0
#: Characters of an id and of a name of a person; those of providers have at most 255.
_TEXT_CHARS: Final = 256
_ANSWER_BYTES_MAX: Final = 256 * 1024
#: The client's authentication at the token endpoint by default (OpenID Connect Discovery, 3).
_BASIC: Final = "client_secret_basic"
_DISCOVERY: Final = "/.well-known/openid-configuration"


class Person(NamedTuple):
    """A person who signed in.

    Attributes:
        subject: Id at the provider.
        name: Email address or name, for the audit log.
        role: The role with the most rights that one of the groups has.
    """

    subject: str
    name: str
    role: Role


class Pending(msgspec.Struct, frozen=True):
    """A sign-in that was begun; the content of its cookie."""

    state: str
    nonce: str
    verifier: str
    target: str
    until_ms: int


class SignInRefused(Exception):
    """A sign-in did not succeed; the message is for the person and for the log.

    Attributes:
        subject: Who signed in at the provider; empty if that is not known.
    """

    def __init__(self, reason: str, subject: str = "") -> None:
        super().__init__(reason)
        self.subject = subject


class _Provider(msgspec.Struct, frozen=True):
    """The used part of a discovery document."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: tuple[str, ...] = (_BASIC,)


T = TypeVar("T")


class _TokenAnswer(msgspec.Struct, frozen=True):
    id_token: str


class OidcSignIn:
    """Signs people in at one provider.

    Args:
        options: The settings.
        draw: Returns as many random bytes.
        clock: Returns Unix milliseconds.
        steady_s: Monotonic clock, in seconds.
        transport: Transport of HTTP requests; None for the real network.
    """

    def __init__(
        self,
        options: OidcOptions,
        *,
        draw: Callable[[int], bytes],
        clock: Callable[[], int],
        steady_s: Callable[[], float],
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._options = options
        self._draw = draw
        self._clock = clock
        self._steady_s = steady_s
        self._transport = transport
        self._provider: _Provider | None = None
        self._read_at_s = self._attempted_at_s = float("-inf")
        self._reading = asyncio.Lock()
        self._verifier = Verifier(
            KeySource(self._read_keys, steady_s),
            issuer=options.issuer,
            audience=options.client_id,
            user_prefix="",
            clock=clock,
        )

    @property
    def session_s(self) -> int:
        """Seconds after which a person signs in again."""
        return self._options.session_s

    async def begin(self, target: str) -> tuple[Pending, str]:
        """Return a new sign-in, and the provider's URL for it.

        Args:
            target: Page of the console to show afterwards.

        Raises:
            SignInRefused: The provider did not answer.
        """
        provider = await self._discover()
        pending = Pending(
            state=self._random(),
            nonce=self._random(),
            verifier=self._random(),
            target=target,
            until_ms=self._clock() + PENDING_S * 1000,
        )
        challenge = _base64(hashlib.sha256(pending.verifier.encode()).digest())
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self._options.client_id,
                "redirect_uri": self._options.redirect_url,
                "scope": self._options.scopes,
                "state": pending.state,
                "nonce": pending.nonce,
                "code_challenge": challenge,
                "code_challenge_method": "S256",
            }
        )
        joint = "&" if "?" in provider.authorization_endpoint else "?"
        return pending, f"{provider.authorization_endpoint}{joint}{query}"

    async def finish(self, pending: Pending | None, answer: Mapping[str, str]) -> Person:
        """Return the person who signed in.

        Args:
            pending: The sign-in, from its cookie; None without one.
            answer: Query parameters of the callback.

        Raises:
            SignInRefused: It is not the answer to this sign-in, the provider refused it, or the
                person has no role.
            KeysUnavailable: The keys of the provider could not be read.
        """
        if pending is None:
            raise SignInRefused("expected a sign-in that began here, found none; sign in again")
        if pending.until_ms <= self._clock():
            raise SignInRefused("the sign-in took longer than ten minutes")
        if not compare_digest(answer.get("state", "").encode(), pending.state.encode()):
            raise SignInRefused("state: expected that of this sign-in, found another")
        # RFC 9207: the answer may be that of another provider.
        if answer.get("iss", self._options.issuer) != self._options.issuer:
            raise SignInRefused("iss: expected the issuer of HEADWATER_OIDC_ISSUER, found another")
        if "error" in answer:
            raise SignInRefused(f"the provider refused it: {answer['error'][:64]!r}")
        token = await self._exchange(answer.get("code", ""), pending.verifier)
        try:
            claims = await self._verifier.claims_of(token)
        except TokenRefused as error:
            raise SignInRefused(f"id_token: {error}") from error
        return self._person(claims, pending.nonce)

    def _person(self, claims: Mapping[str, Any], nonce: str) -> Person:
        if not compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise SignInRefused("nonce: expected that of this sign-in, found another")
        if claims.get("azp", self._options.client_id) != self._options.client_id:
            raise SignInRefused("azp: expected this console, found another client")
        groups = claims.get(self._options.claim, ())
        role = role_of(groups if isinstance(groups, list) else [groups], self._options.roles)
        subject = _text(claims["sub"])
        if role is None:
            raise SignInRefused(
                f"{self._options.claim}: expected a group of HEADWATER_OIDC_ROLES, found none",
                subject,
            )
        name = claims.get("email") or claims.get("preferred_username") or claims.get("name") or ""
        return Person(subject, _text(name), role)

    async def _discover(self) -> _Provider:
        async with self._reading:
            if self._provider is None or self._steady_s() - self._read_at_s >= _FRESH_S:
                await self._read_provider()
            if self._provider is None:
                raise SignInRefused("the provider did not answer a moment ago; try again")
            return self._provider

    async def _read_provider(self) -> None:
        """Read the discovery document, unless the last attempt was too recent.

        Raises:
            SignInRefused: The provider did not answer, or not as expected.
        """
        if self._steady_s() - self._attempted_at_s < _READ_INTERVAL_S:
            return
        self._attempted_at_s = self._steady_s()
        body = await self._request("GET", self._options.issuer.rstrip("/") + _DISCOVERY)
        provider = _read(body, _Provider, "a discovery document")
        if provider.issuer != self._options.issuer:
            raise SignInRefused(f"issuer: expected {self._options.issuer}, found another")
        if any(map(is_plain_http, (provider.token_endpoint, provider.jwks_uri))):
            raise SignInRefused("expected addresses of the provider with https://")
        self._provider, self._read_at_s = provider, self._steady_s()

    async def _read_keys(self) -> bytes:
        try:
            return await self._request("GET", (await self._discover()).jwks_uri)
        except SignInRefused as error:
            raise KeySetInvalid(str(error)) from error

    async def _exchange(self, code: str, verifier: str) -> str:
        """Return the id token for a code."""
        options = self._options
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": options.redirect_url,
            "client_id": options.client_id,
            "code_verifier": verifier,
        }
        provider = await self._discover()
        is_basic = _BASIC in provider.token_endpoint_auth_methods_supported
        secret = options.client_secret
        if secret and not is_basic:
            form["client_secret"] = secret
        # RFC 6749, 2.3.1: both parts are encoded.
        account = (quote_plus(options.client_id), quote_plus(secret)) if secret else None
        body = await self._request(
            "POST", provider.token_endpoint, form, account if is_basic else None
        )
        return _read(body, _TokenAnswer, "a token answer").id_token

    async def _request(
        self,
        method: str,
        url: str,
        form: Mapping[str, str] | None = None,
        account: tuple[str, str] | None = None,
    ) -> bytes:
        """Send a request to the provider; return the body of its answer."""
        try:
            async with (
                httpx2.AsyncClient(
                    timeout=_TIMEOUT_S, transport=self._transport, auth=account
                ) as client,
                client.stream(
                    method, url, data=form, headers={"accept": "application/json"}
                ) as response,
            ):
                body = b""
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > _ANSWER_BYTES_MAX:
                        raise SignInRefused("the answer of the provider is too large")
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise SignInRefused(f"the provider did not answer: {type(error).__name__}") from error
        if response.status_code != httpx2.codes.OK:
            raise SignInRefused(f"the provider answered {response.status_code}")
        return body

    def _random(self) -> str:
        return _base64(self._draw(_RANDOM_BYTES))


def role_of(groups: Sequence[object], roles: Mapping[str, str]) -> Role | None:
    """Return the role with the most rights that one of the groups has, if any has one."""
    named = {roles[group] for group in ("*", *map(str, groups)) if group in roles}
    # Roles are declared in the order of their rights.
    return next((role for role in reversed(Role) if role in named), None)


def _read(body: bytes, kind: type[T], expected: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except PARSE_ERRORS as error:
        raise SignInRefused(f"expected {expected} of the provider, found: {error}") from error


def _text(value: object) -> str:
    return str(value)[:_TEXT_CHARS].encode(errors="replace").decode()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
