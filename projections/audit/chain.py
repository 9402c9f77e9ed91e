"""The hashes of the audit log: each is of the hash before it and of its entry.

What is hashed is the entry as JSON: its names in order, no spaces, UTF-8. So whoever has the
entries can compute the hashes, and whoever keeps one hash somewhere else can tell whether anything
before it was changed.
"""

import hashlib
import json
from datetime import UTC, datetime
from typing import Final

import msgspec

from headwater.schemas.audit import OperationAudited

__all__ = ["GENESIS", "Entry", "canonical", "entry_of", "linked"]

#: What stands before the first entry.
GENESIS: Final = bytes(hashlib.sha256().digest_size)
#: Postgres's text cannot hold it.
_NUL: Final = "\0"
_REPLACEMENT: Final = "\ufffd"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry, as its row has it; created_at as RFC 3339 with milliseconds, in UTC."""

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
    """The entry of a record.

    Errors: ValueError, OverflowError or OSError for a moment that no calendar has.
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
    """What is hashed of an entry."""
    found = msgspec.structs.asdict(entry)
    return json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def linked(before: bytes, entry: Entry) -> bytes:
    """The hash of an entry, from the hash before it."""
    return hashlib.sha256(before + canonical(entry).encode()).digest()
