"""The keys of an issuer, read from its JWKS (RFC 7517): those that can check a user's token."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.exceptions import PyJWTError

from headwater.schemas.errors import PARSE_ERRORS

#: A set has a handful of keys. One that is larger than this is something else.
KEY_SET_BYTES_MAX: Final = 256 * 1024
#: Shorter ones can be broken (RFC 7518, 3.3).
_RSA_BITS_MIN: Final = 2048

#: What a key of a type, and of a curve, signs with. There is nothing else: no secret that both
#: sides know could be told from a public key, and "none" is no signature.
_ALGORITHMS: Final = {
    ("RSA", None): "RS256",
    ("EC", "P-256"): "ES256",
    ("OKP", "Ed25519"): "EdDSA",
}
ALGORITHMS: Final = tuple(_ALGORITHMS.values())
#: Of whatever kind the algorithm takes; only the library looks inside.
PublicKey: TypeAlias = Any

_READERS: Final[dict[str, Callable[[dict[str, Any]], PublicKey]]] = {
    "RSA": RSAAlgorithm.from_jwk,
    "EC": ECAlgorithm.from_jwk,
    "OKP": OKPAlgorithm.from_jwk,
}


class KeySetInvalid(Exception):
    """A document that is no JWKS; says why."""


class TokenKey(NamedTuple):
    """A key that can check tokens, by the one algorithm that fits it."""

    kid: str | None
    algorithm: str
    public: PublicKey


class _Jwk(msgspec.Struct, omit_defaults=True):
    """A key, without what would be private of it."""

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
    """The keys of a JWKS that can check tokens. Keys of other kinds and uses are passed over.

    Errors: KeySetInvalid for what is no JWKS.
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
    meant = jwk.use in (None, "sig") and "verify" in (jwk.key_ops or ["verify"])
    if algorithm is None or jwk.alg not in (None, algorithm) or not meant:
        return None
    try:
        public: PublicKey = _READERS[jwk.kty](msgspec.to_builtins(jwk))
    except (PyJWTError, TypeError, *PARSE_ERRORS):
        return None
    if isinstance(public, RSAPublicKey) and public.key_size < _RSA_BITS_MIN:
        return None
    return TokenKey(jwk.kid, algorithm, public)
