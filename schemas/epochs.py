"""Headers that identify a record's writer by the epoch of the partition's owner."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

EPOCH: Final = "headwater.epoch"
CLAIM: Final = "headwater.claim"
UNSEEN: Final = "headwater.unseen"
WIPED: Final = ("headwater.wiped", b"1")
HIDDEN: Final = ("headwater.hidden", b"1")

#: Meaning of every header.
MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        EPOCH: "The writer's epoch, in decimal digits.",
        CLAIM: "On a record that only claims the partition from now on: the owner.",
        UNSEEN: "On a claim of the topic waiting: the offset of webhook-outcomes from which on "
        "void records have not been searched yet, and the newest epoch there, as offset@epoch.",
        WIPED[0]: "On the tombstone of a row that a wipe removed: readers are notified without "
        "the user's name.",
        HIDDEN[0]: "On a row that is deleted, or has no columns yet: readers have no such row. Its "
        "owner needs what the record contains.",
    }
)
#: Key of a claim. Its value is empty. No other key of Headwater begins like that.
CLAIM_KEY: Final = b"\x00claim"
#: Key of a record that only takes up an offset, because the record that had it is in another
#: partition since the topics got more partitions, or was removed (ADR 0101). Clients skip it.
GAP_KEY: Final = b"\x00gap"


def epoch_of(headers: Sequence[tuple[str, bytes | None]]) -> int | None:
    """Return the epoch of a record's writer; None for a record without an owner."""
    for name, value in headers:
        if name == EPOCH:
            return int(value) if value and value.isdigit() else None
    return None


def unseen_of(headers: Sequence[tuple[str, bytes | None]]) -> tuple[int, int] | None:
    """Return where to start searching void outcomes, and the epoch there; None if not set."""
    for name, value in headers:
        if name == UNSEEN:
            offset, _, epoch = (value or b"").partition(b"@")
            return (int(offset), int(epoch)) if _is_number(offset) and _is_number(epoch) else None
    return None


def _is_number(digits: bytes) -> bool:
    return digits.removeprefix(b"-").isdigit()


def is_claim(headers: Sequence[tuple[str, bytes]]) -> bool:
    """Return whether a record is a claim."""
    return any(name == CLAIM for name, _ in headers)
