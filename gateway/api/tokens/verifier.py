"""Verifies JWTs (RFC 7519) and returns the ids of their users."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import jwt

from headwater.gateway.api.tokens.key_set import ALGORITHMS, TokenKey
from headwater.gateway.api.tokens.key_source import KeySource
from headwater.processors.input_texts import text_problem

#: Most characters of a token; those of known issuers have fewer than 2,000.
TOKEN_CHARS_MAX: Final = 8_192
#: Seconds by which clocks may differ.
LEEWAY_S: Final = 30
#: Largest Unix time in a claim: beyond the year 9999, and exact as a double.
_SECONDS_MAX: Final = 2**53
#: Times are not verified by the library, but with the injected clock.
_OPTIONS: Final[Any] = {
    "require": ["sub", "exp"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}
#: Reasons by error of the library; they name a claim and reveal nothing of the token.
_REASONS: Final[dict[type[Exception], str]] = {
    jwt.InvalidSignatureError: "the signature is not that of the issuer's key",
    jwt.InvalidIssuerError: "iss: expected the issuer of the settings, found another",
    jwt.InvalidAudienceError: "aud: expected the audience of the settings, found another",
    jwt.exceptions.InvalidSubjectError: "sub: expected a string",
}


class TokenRefused(Exception):
    """A token is invalid; the message is the reason for its sender."""


class Verifier:
    """Verifies tokens.

    Args:
        keys: Keys of the issuer.
        issuer: Required issuer; "" for any.
        audience: Required audience; "" for none. Then a token with an audience is refused (RFC
            7519, 4.1.3).
        user_prefix: Prefix of the ids of users; "" for any id.
        clock: Returns Unix milliseconds.
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
        """Return the id of the user of a token.

        Raises:
            TokenRefused: The token is invalid.
            KeysUnavailable: The keys of the issuer could not be read.
        """
        user_id: str = (await self.claims_of(token))["sub"]
        problem = user_id_problem("sub", user_id, self._user_prefix)
        if problem is not None:
            raise TokenRefused(problem)
        return user_id

    async def claims_of(self, token: str) -> dict[str, Any]:
        """Return the claims of a token; its issuer, audience and times are verified.

        Raises:
            TokenRefused: The token is invalid.
            KeysUnavailable: The keys of the issuer could not be read.
        """
        algorithm, kid = _header(token)
        key = await self._keys.find(algorithm, kid)
        if key is None:
            expected = "exactly one key of its algorithm" if kid is None else "a key of the issuer"
            raise TokenRefused(f"kid: expected {expected}, found none for {algorithm}")
        claims = self._claims(token, key)
        _check_times(claims, self._clock() / 1000)
        return claims

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


def user_id_problem(field: str, user_id: str, prefix: str) -> str | None:
    """Return why a text is not a valid user id, with the name of its field; None if it is valid.

    An id without the prefix would not be recognized in the deliveries of its connections.
    """
    if not user_id:
        return f"{field}: expected a user's id, found an empty text"
    problem = text_problem(field, user_id)
    if problem is None and not user_id.startswith(prefix):
        return f"{field}: expected a user's id, which begins with {prefix} (HEADWATER_USER_PREFIX)"
    return problem


def _header(token: str) -> tuple[str, str | None]:
    """Return the algorithm and key id of a token, which are not verified yet.

    Raises:
        TokenRefused: The token is malformed, or its algorithm is not supported.
    """
    if len(token) > TOKEN_CHARS_MAX:
        raise TokenRefused(f"expected at most {TOKEN_CHARS_MAX} characters, found {len(token)}")
    try:
        header = jwt.get_unverified_header(token)
    except Exception as error:
        raise TokenRefused("expected a JWT: three parts separated by dots") from error
    algorithm, kid = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS:
        raise TokenRefused(f"alg: expected one of {', '.join(ALGORITHMS)}, found another")
    return algorithm, kid


def _check_times(claims: dict[str, Any], now_s: float) -> None:
    """Refuse a token that has expired or is not valid yet.

    Raises:
        TokenRefused: It is not valid now, or a time is malformed.
    """
    if _seconds("exp", claims["exp"]) + LEEWAY_S <= now_s:
        raise TokenRefused(f"exp: the token has expired; the time here is {_utc(now_s)}")
    if "nbf" in claims and _seconds("nbf", claims["nbf"]) - LEEWAY_S > now_s:
        raise TokenRefused(f"nbf: the token is not valid yet; the time here is {_utc(now_s)}")
    if "iat" in claims:
        _seconds("iat", claims["iat"])


def _seconds(claim: str, value: object) -> float:
    # bool is a subclass of int. NaN fails the range check below.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused(f"{claim}: expected a number of seconds, found a {type(value).__name__}")
    if not -_SECONDS_MAX <= value <= _SECONDS_MAX:
        raise TokenRefused(
            f"{claim}: expected a number of seconds of at most {_SECONDS_MAX}, found another"
        )
    return value


def _utc(now_s: float) -> str:
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
