"""The development issuer: users' tokens for a machine of one's own, without an account anywhere.

`headwater up` makes its key once, in the folder of the data, and `headwater token` signs with it.
Whoever reads that folder is everybody, so the gateway never takes its tokens on an address that
others can reach.
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

from headwater.gateway.loopback import DEVELOPMENT_ISSUER
from headwater.gateway.privacy import make_data_dir

#: Whom its tokens are for.
AUDIENCE: Final = "headwater"
_KEY_FILE: Final = "development-issuer.pem"
_KEY_SET_FILE: Final = "development-issuer.jwks.json"
_ALGORITHM: Final = "EdDSA"
_KID: Final = "development"


class NoIssuer(Exception):
    """The development issuer has no key here; says what to do."""


def make_issuer(data_dir: Path) -> Path:
    """The file of its key set; it and the key behind it are made if they are not there."""
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
    """A token of a user.

    Errors: NoIssuer.
    """
    key_file = data_dir / _KEY_FILE
    try:
        key = _key(key_file)
    except (OSError, ValueError) as error:
        raise NoIssuer(
            f"expected the development issuer's key at {key_file}, found: {error}; `headwater up` "
            "makes it"
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
    found = load_pem_private_key(file.read_bytes(), password=None)
    if not isinstance(found, Ed25519PrivateKey):
        raise ValueError("expected a key of Ed25519")  # noqa: TRY004 (what a file holds)
    return found


def _write(file: Path, content: bytes) -> None:
    """Writes a file that its owner alone may read, whole or not at all."""
    unfinished = file.with_suffix(f"{file.suffix}.new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
    unfinished.replace(file)
