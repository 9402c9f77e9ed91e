"""An issuer of tokens for tests: keys of every kind, their JWKS, and whatever one might sign."""

import base64
import json
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER = "https://issuer.example"
AUDIENCE = "headwater"
USER = "user_amara"
NOW_S = 1_782_900_000

#: By the algorithm that each signs with. Keys of RSA take long to make, so they are made once.
KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
_KINDS: dict[str, Any] = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}


def jwk(algorithm: str, kid: str, key: object = None, **more: object) -> dict[str, Any]:
    private: Any = key or KEYS[algorithm]
    public = private.public_key()
    described = _KINDS[algorithm].to_jwk(public, as_dict=True)
    described.pop("key_ops", None)
    return {**described, "kid": kid, **more}


def key_set(*keys: object) -> bytes:
    return json.dumps({"keys": keys or [jwk(name, name) for name in KEYS]}).encode()


def claims(**changed: object) -> dict[str, Any]:
    """Those of a good token; a claim that is changed to None is left out."""
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": USER, "exp": NOW_S + 600}
    return {name: value for name, value in (usual | changed).items() if value is not None}


def token(
    algorithm: str = "EdDSA", kid: str | None = "", key: object = None, **changed: object
) -> str:
    """A token; its key is called as its algorithm is, unless told otherwise."""
    headers = {} if kid is None else {"kid": kid or algorithm}
    private: Any = key or KEYS[algorithm]
    return jwt.encode(claims(**changed), private, algorithm, headers=headers)


def unsigned(header: dict[str, Any], body: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(body).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
