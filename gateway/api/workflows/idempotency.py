"""The header Idempotency-Key: converts it to what the owner of an instance deduplicates by."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headwater.gateway.api.problems import Problem
from headwater.schemas.failures import INVALID_INSTANCE_ID
from headwater.schemas.history import Once

#: Sizes of the digest of a request, and of the digest from which an id is derived.
_DIGEST_BYTES: Final = 8
_ID_BYTES: Final = 16
_DERIVED_ID: Final = re.compile(rf"key-[0-9a-f]{{{2 * _ID_BYTES}}}")


def idempotency_of(key: str, *request: msgspec.Raw | str | Mapping[str, str]) -> Once | None:
    """Return what deduplicates a command; None without a key.

    Args:
        key: The idempotency key, scoped to its caller.
        request: Parts of the request. The order of names in JSON objects does not matter.
    """
    if not key:
        return None
    text = json.dumps([_plain(part) for part in request], sort_keys=True)
    return Once(key, hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest())


def instance_id_of(key: str) -> str:
    """Derive the id of an instance from a key, when the request has no id.

    All creations under one key of one caller get the same id, so that one owner deduplicates them.

    Args:
        key: The key, scoped to its caller by `scoped_key`.
    """
    return f"key-{hashlib.blake2b(key.encode(), digest_size=_ID_BYTES).hexdigest()}"


def refuse_derived_id(instance_id: str | None, field: str) -> None:
    """Refuse a caller's own id that has the form of ids derived from idempotency keys.

    Otherwise a caller that guesses another caller's key could occupy the id derived from it.

    Raises:
        Problem: The id has that form.
    """
    if instance_id is not None and _DERIVED_ID.fullmatch(instance_id):
        raise Problem(
            INVALID_INSTANCE_ID,
            f"expected an id of your own, found {instance_id}: ids of this form are derived from "
            "idempotency keys; leave the id out and send the key",
            field=field,
        )


def _plain(part: object) -> Any:  # noqa: ANN401 (any JSON)
    return json.loads(bytes(part)) if isinstance(part, msgspec.Raw) else part
