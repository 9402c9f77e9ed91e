"""The header Idempotency-Key: what it stands for, as the owner of an instance knows it again."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headwater.gateway.http.problems import Problem
from headwater.schemas.failures import INVALID_INSTANCE_ID
from headwater.schemas.history import Once

#: Of a digest that tells bodies apart, and of one that an id is made of.
_DIGEST_BYTES: Final = 8
_ID_BYTES: Final = 16
_MADE_OF_KEY: Final = re.compile(rf"key-[0-9a-f]{{{2 * _ID_BYTES}}}")


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
    """Return the id of an instance that is created under a key, and without an id of its own.

    Creations under one key of one caller meet in it, and the owner of that instance sees them all.

    Args:
        key: The key, scoped to its caller by `scoped_key`.
    """
    return f"key-{hashlib.blake2b(key.encode(), digest_size=_ID_BYTES).hexdigest()}"


def refuse_made_of_key(instance_id: str | None, field: str) -> None:
    """Refuse an id that a caller has chosen where ids like it are made of idempotency keys.

    Otherwise a caller who guesses another's key could take the id that is made of it.

    Raises:
        Problem: The id has the form of those.
    """
    if instance_id is not None and _MADE_OF_KEY.fullmatch(instance_id):
        raise Problem(
            INVALID_INSTANCE_ID,
            f"expected an id of your own, found {instance_id}: ids of this form are made of "
            "idempotency keys; leave the id out and send the key",
            field=field,
        )


def _plain(asked: object) -> Any:  # noqa: ANN401 (any JSON)
    return json.loads(bytes(asked)) if isinstance(asked, msgspec.Raw) else asked
