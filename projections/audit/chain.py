"""The hash chain of the audit log: each hash covers the previous hash and its entry.

An entry is hashed as JSON with sorted names, without spaces, in UTF-8. So the hashes can be
recomputed from the entries, and a hash stored elsewhere shows whether anything before it was
changed.
"""

import hashlib
import json
from datetime import UTC, datetime
from typing import Final

import msgspec

from headwater.schemas.audit import OperationAudited

__all__ = ["GENESIS", "Entry", "canonical", "entry_of", "linked"]

#: Hash before the first entry.
GENESIS: Final = bytes(hashlib.sha256().digest_size)
#: Postgres's text cannot hold NUL.
_NUL: Final = "\0"
_REPLACEMENT: Final = "\ufffd"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as in its row; `created_at` is RFC 3339 with milliseconds, in UTC."""

    id: str
    key_id: str | None
    project_id: str | None
    action: str
    resource: str
    result: str
    ip: str | None
    user_agent: str | None
    metadata_json: str | None
    created_at: str
    offset: int


def entry_of(record: OperationAudited, offset: int) -> Entry:
    """Return the entry of a record.

    Raises:
        ValueError, OverflowError, OSError: The time is out of range.
    """
    at = datetime.fromtimestamp(record.at_ms / 1000, UTC)
    texts = msgspec.structs.asdict(record)
    del texts["at_ms"]
    texts["metadata_json"] = texts.pop("metadata")
    return Entry(
        **{name: text.replace(_NUL, _REPLACEMENT) for name, text in texts.items()},
        created_at=at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        offset=offset,
    )


def canonical(entry: Entry) -> str:
    """Return the text of an entry that is hashed."""
    fields = msgspec.structs.asdict(entry)
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def linked(previous: bytes, entry: Entry) -> bytes:
    """Return the hash of an entry, from the previous hash."""
    return hashlib.sha256(previous + canonical(entry).encode()).digest()
