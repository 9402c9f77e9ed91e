"""The header Idempotency-Key: what it stands for, as the owner of an instance knows it again."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headwater.schemas.history import Once

#: Of a digest that tells bodies apart, and of one that an id is made of.
_DIGEST_BYTES: Final = 8
_ID_BYTES: Final = 16


def once(key: str, *asked: msgspec.Raw | str | Mapping[str, str]) -> Once | None:
    """What makes a command one that is carried out once; None without a key.

    Shape:  asked is what the caller wants done; JSON that says the same, in whatever order of its
            names, is the same.
    """
    if not key:
        return None
    text = json.dumps([_plain(each) for each in asked], sort_keys=True)
    return Once(key, hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest())


def instance_id_of(key: str) -> str:
    """The id of an instance that is created under a key, and without an id of its own.

    Creations under one key meet in it, and the owner of that instance sees them all.
    """
    return f"key-{hashlib.blake2b(key.encode(), digest_size=_ID_BYTES).hexdigest()}"


def _plain(asked: object) -> Any:  # noqa: ANN401 (any JSON)
    return json.loads(bytes(asked)) if isinstance(asked, msgspec.Raw) else asked
