"""Checkpoints of the audit log: entries that state the hash of an earlier entry, signed.

An attacker who can write Kafka and Postgres can rewrite the whole log with new hashes, but cannot
sign the checkpoints in it again without a key, nor change the lines that gateways printed.
"""

import hmac
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final

import msgspec

#: Action of the entries.
CHECKPOINT: Final = "audit.checkpoint"
_PURPOSE: Final = "headwater audit checkpoint"


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The hash of an entry, which covers all earlier ones of its project.

    Attributes:
        project: The project.
        offset: Offset of the entry.
        hash: Its hash, hexadecimal.
        at_ms: When the checkpoint was made, Unix milliseconds.
        signature: HMAC-SHA256 of the others, hexadecimal; empty without a key.
    """

    project: str
    offset: int
    hash: str
    at_ms: int
    signature: str = ""

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of its entry."""
        return {
            "project": self.project,
            "offset": self.offset,
            "hash": self.hash,
            "atMs": self.at_ms,
            "signature": self.signature,
        }


def signed(checkpoint: Checkpoint, key: str) -> Checkpoint:
    """Return a checkpoint with its signature; without a key it has none."""
    if not key:
        return checkpoint
    return msgspec.structs.replace(checkpoint, signature=_signature(checkpoint, key))


def is_signed(checkpoint: Checkpoint, keys: Iterable[str]) -> bool:
    """Whether one of the keys signed a checkpoint."""
    return any(hmac.compare_digest(checkpoint.signature, _signature(checkpoint, k)) for k in keys)


def checkpoint_of(metadata: str | None) -> Checkpoint | None:
    """Return the checkpoint in the metadata of an entry; None if there is none that can be read."""
    try:
        return msgspec.json.decode(metadata or "", type=Checkpoint)
    except msgspec.DecodeError:
        return None


def _signature(checkpoint: Checkpoint, key: str) -> str:
    stated = (checkpoint.project, checkpoint.offset, checkpoint.hash, checkpoint.at_ms)
    text = "\n".join((_PURPOSE, *map(str, stated)))
    return hmac.new(key.encode(), text.encode(), sha256).hexdigest()
