"""Parses the JWKS of an issuer (RFC 7517) into the keys that can verify users' tokens."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.exceptions import PyJWTError

from headwater.schemas.errors import PARSE_ERRORS

#: Most bytes of a key set, which has a handful of keys.
KEY_SET_BYTES_MAX: Final = 256 * 1024
#: RFC 7518, 3.3: shorter keys can be broken.
_RSA_BITS_MIN: Final = 2048

#: Algorithm by key type and curve. No symmetric algorithm is allowed, because an attacker could use
#: a public key as its secret; nor is "none", which is no signature.
_ALGORITHMS: Final = {
    ("RSA", None): "RS256",
    ("EC", "P-256"): "ES256",
    ("OKP", "Ed25519"): "EdDSA",
}
ALGORITHMS: Final = tuple(_ALGORITHMS.values())
#: A public key; its type depends on the algorithm.
PublicKey: TypeAlias = Any

_READERS: Final[dict[str, Callable[[dict[str, Any]], PublicKey]]] = {
    "RSA": RSAAlgorithm.from_jwk,
    "EC": ECAlgorithm.from_jwk,
    "OKP": OKPAlgorithm.from_jwk,
}


class KeySetInvalid(Exception):
    """A document is not a JWKS; the message states why."""


class TokenKey(NamedTuple):
    """A key that verifies tokens, with the only algorithm for its type."""

    kid: str | None
    algorithm: str
    public: PublicKey


class _Jwk(msgspec.Struct, omit_defaults=True):
    """A JWK without its private fields."""

    kty: str
    kid: str | None = None
    use: str | None = None
    key_ops: list[str] | None = None
    alg: str | None = None
    crv: str | None = None
    n: str | None = None
    e: str | None = None
    x: str | None = None
    y: str | None = None


class _Document(msgspec.Struct):
    keys: list[msgspec.Raw]


def read_key_set(document: bytes) -> tuple[TokenKey, ...]:
    """Return the keys of a JWKS that can verify tokens; skip keys of other types and uses.

    Raises:
        KeySetInvalid: The document is not a JWKS.
    """
    if len(document) > KEY_SET_BYTES_MAX:
        raise KeySetInvalid(
            f"expected a JWKS of at most {KEY_SET_BYTES_MAX} bytes, found {len(document)} or more"
        )
    try:
        raws = msgspec.json.decode(document, type=_Document).keys
    except PARSE_ERRORS as error:
        raise KeySetInvalid(f"expected a JWKS, found: {error}") from error
    return tuple(key for raw in raws if (key := _token_key(raw)) is not None)


def _token_key(raw: msgspec.Raw) -> TokenKey | None:
    try:
        jwk = msgspec.json.decode(raw, type=_Jwk)
    except PARSE_ERRORS:
        return None
    algorithm = _ALGORITHMS.get((jwk.kty, jwk.crv))
    is_for_signatures = jwk.use in (None, "sig") and "verify" in (jwk.key_ops or ["verify"])
    if algorithm is None or jwk.alg not in (None, algorithm) or not is_for_signatures:
        return None
    try:
        public: PublicKey = _READERS[jwk.kty](msgspec.to_builtins(jwk))
    except (PyJWTError, TypeError, *PARSE_ERRORS):
        return None
    if isinstance(public, RSAPublicKey) and public.key_size < _RSA_BITS_MIN:
        return None
    return TokenKey(jwk.kid, algorithm, public)
