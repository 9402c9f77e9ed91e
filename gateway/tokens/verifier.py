"""Whose a token is: a JWT (RFC 7519) becomes the id of a user, or the reason why not."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import jwt

from headwater.gateway.tokens.key_set import ALGORITHMS, TokenKey
from headwater.gateway.tokens.key_source import KeySource
from headwater.processors.texts import text_problem

#: Tokens of known issuers stay below 2,000 characters.
TOKEN_CHARS_MAX: Final = 8_192
#: By how much clocks may differ.
LEEWAY_S: Final = 30
#: Seconds since 1970 of the largest time in a claim: beyond the year 9999, and exact as a double.
_SECONDS_MAX: Final = 2**53
#: Times are compared with a clock that is handed in.
_OPTIONS: Final[Any] = {
    "require": ["sub", "exp"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}
#: What the library found, in words that name a claim and repeat nothing of the token.
_REASONS: Final[dict[type[Exception], str]] = {
    jwt.InvalidSignatureError: "the signature is not that of the issuer's key",
    jwt.InvalidIssuerError: "iss: expected the issuer of HEADWATER_JWT_ISSUER, found another",
    jwt.InvalidAudienceError: "aud: expected what HEADWATER_JWT_AUDIENCE says, found another",
    jwt.exceptions.InvalidSubjectError: "sub: expected a text",
}


class TokenRefused(Exception):
    """A token that says nothing; the reason is for whoever sent it."""


class Verifier:
    """Checks tokens.

    Shape:  an issuer or audience that is empty is not asked for; a token that names an audience is
            refused where we have none (RFC 7519, 4.1.3).
    Units:  the clock in Unix milliseconds.
    """

    def __init__(
        self,
        keys: KeySource,
        *,
        issuer: str,
        audience: str,
        user_prefix: str,
        clock: Callable[[], int],
    ) -> None:
        self._keys = keys
        self._issuer = issuer or None
        self._audience = audience or None
        self._user_prefix = user_prefix
        self._clock = clock

    async def user_of(self, token: str) -> str:
        """The id of the user whose token it is.

        Errors: TokenRefused, KeysUnavailable.
        """
        algorithm, kid = _header(token)
        key = await self._keys.find(algorithm, kid)
        if key is None:
            named = "one key that fits" if kid is None else "a key of the issuer"
            raise TokenRefused(f"kid: expected {named}, found none for {algorithm}")
        claims = self._claims(token, key)
        _check_times(claims, self._clock() / 1000)
        user_id: str = claims["sub"]
        fault = user_fault("sub", user_id, self._user_prefix)
        if fault is not None:
            raise TokenRefused(fault)
        return user_id

    def _claims(self, token: str, key: TokenKey) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                key.public,
                algorithms=[key.algorithm],
                issuer=self._issuer,
                audience=self._audience,
                options=_OPTIONS,
            )
        except jwt.MissingRequiredClaimError as error:
            raise TokenRefused(f"{error.claim}: expected it, found none") from error
        except Exception as error:
            reason = _REASONS.get(type(error), "it cannot be read")
            raise TokenRefused(reason) from error


def user_fault(field: str, user_id: str, prefix: str) -> str | None:
    """Says why a text cannot be a user's id, naming its field; None if it can.

    An id without the prefix would not be known again in the deliveries of its connections.
    """
    fault = text_problem(field, user_id)
    if fault is None and not user_id.startswith(prefix):
        return f"{field}: expected a user's id, which begins with {prefix} (HEADWATER_USER_PREFIX)"
    return fault


def _header(token: str) -> tuple[str, str | None]:
    """What a token says of its signature, of which nothing is known to be true yet.

    Errors: TokenRefused.
    """
    if len(token) > TOKEN_CHARS_MAX:
        raise TokenRefused(f"expected at most {TOKEN_CHARS_MAX} characters, found {len(token)}")
    try:
        header = jwt.get_unverified_header(token)
    except Exception as error:
        raise TokenRefused("expected a JWT: three parts with dots between them") from error
    algorithm, kid = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS:
        raise TokenRefused(f"alg: expected one of {', '.join(ALGORITHMS)}, found another")
    return algorithm, kid


def _check_times(claims: dict[str, Any], now_s: float) -> None:
    """Refuses what has ended, or has not begun.

    Errors: TokenRefused.
    """
    if _seconds("exp", claims["exp"]) + LEEWAY_S <= now_s:
        raise TokenRefused(f"exp: the token has expired; it is {_moment(now_s)} here")
    if "nbf" in claims and _seconds("nbf", claims["nbf"]) - LEEWAY_S > now_s:
        raise TokenRefused(f"nbf: the token is not valid yet; it is {_moment(now_s)} here")
    if "iat" in claims:
        _seconds("iat", claims["iat"])


def _seconds(claim: str, value: object) -> float:
    # A truth value is a number to Python. No comparison holds for NaN.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused(f"{claim}: expected a number of seconds, found a {type(value).__name__}")
    if not -_SECONDS_MAX <= value <= _SECONDS_MAX:
        raise TokenRefused(
            f"{claim}: expected a number of seconds of at most {_SECONDS_MAX}, found another"
        )
    return value


def _moment(now_s: float) -> str:
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
