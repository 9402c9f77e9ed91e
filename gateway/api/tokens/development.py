"""Development issuer: signs users' tokens on a developer's machine, without an external issuer.

`headwater up` creates its key once, in the data folder, and `headwater token` signs with it. Anyone
who can read that folder can impersonate every user, so the gateway never accepts these tokens on
an address that other machines can reach.
"""

import json
import os
from pathlib import Path
from typing import Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from headwater.gateway.settings.exposure import DEVELOPMENT_ISSUER
from headwater.gateway.settings.privacy import make_data_dir

#: Audience of its tokens.
AUDIENCE: Final = "headwater"
_KEY_FILE: Final = "development-issuer.pem"
_KEY_SET_FILE: Final = "development-issuer.jwks.json"
_ALGORITHM: Final = "EdDSA"
_KID: Final = "development"


class NoIssuer(Exception):
    """The development issuer has no key; the message names the command that creates it."""


def make_issuer(data_dir: Path) -> Path:
    """Return the file of the key set; create it and the private key if they are missing."""
    key_file, key_set_file = data_dir / _KEY_FILE, data_dir / _KEY_SET_FILE
    make_data_dir(data_dir)
    if not key_file.exists():
        pem = Ed25519PrivateKey.generate().private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        _write(key_file, pem)
    public = jwt.algorithms.OKPAlgorithm.to_jwk(_key(key_file).public_key(), as_dict=True)
    key = {**public, "kid": _KID, "alg": _ALGORITHM, "use": "sig"}
    _write(key_set_file, json.dumps({"keys": [key]}).encode())
    return key_set_file


def token_of(data_dir: Path, user_id: str, *, now_s: int, lifetime_s: int) -> str:
    """Sign a token for a user.

    Args:
        data_dir: The data folder.
        user_id: The user's id.
        now_s: Current Unix time in seconds.
        lifetime_s: Seconds until the token expires.

    Raises:
        NoIssuer: The issuer has no usable key.
    """
    key_file = data_dir / _KEY_FILE
    try:
        key = _key(key_file)
    except (OSError, ValueError) as error:
        raise NoIssuer(
            f"expected the development issuer's key at {key_file}, found: {error}; `headwater up` "
            "creates it"
        ) from error
    claims = {
        "iss": DEVELOPMENT_ISSUER,
        "aud": AUDIENCE,
        "sub": user_id,
        "iat": now_s,
        "exp": now_s + lifetime_s,
    }
    return jwt.encode(claims, key, algorithm=_ALGORITHM, headers={"kid": _KID})


def _key(file: Path) -> Ed25519PrivateKey:
    key = load_pem_private_key(file.read_bytes(), password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("expected an Ed25519 key")  # noqa: TRY004 (content of a file)
    return key


def _write(file: Path, content: bytes) -> None:
    """Write a file atomically; only its owner may read it."""
    unfinished = file.with_suffix(f"{file.suffix}.new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
    unfinished.replace(file)
