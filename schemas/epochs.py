"""How records name their writer: the epoch of the owner of the partition, in a header."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

EPOCH: Final = "headwater.epoch"
CLAIM: Final = "headwater.claim"
UNSEEN: Final = "headwater.unseen"
WIPED: Final = ("headwater.wiped", b"1")

#: What each header says, by its name.
MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        EPOCH: "The writer's epoch, in decimal digits.",
        CLAIM: "On a record that says nothing but that its writer owns the partition from now on: "
        "who that is.",
        UNSEEN: "On a claim of the topic waiting: from which offset of webhook-outcomes on nobody "
        "has looked yet for void records, and the newest epoch there, as offset@epoch.",
        WIPED[0]: "On the tombstone of a row that a wipe has removed: readers are told without "
        "naming its user.",
    }
)
#: The key of a claim, whose value is empty. No other key of ours begins like that.
CLAIM_KEY: Final = b"\x00claim"


def epoch_of(headers: Sequence[tuple[str, bytes | None]]) -> int | None:
    """The epoch of a record's writer; None for one that no owner has written."""
    for name, value in headers:
        if name == EPOCH:
            return int(value) if value and value.isdigit() else None
    return None


def unseen_of(headers: Sequence[tuple[str, bytes | None]]) -> tuple[int, int] | None:
    """Where to begin to look for void outcomes, and the epoch there; None if it is not said."""
    for name, value in headers:
        if name == UNSEEN:
            offset, _, epoch = (value or b"").partition(b"@")
            return (int(offset), int(epoch)) if _is_number(offset) and _is_number(epoch) else None
    return None


def _is_number(digits: bytes) -> bool:
    return digits.removeprefix(b"-").isdigit()


def is_claim(headers: Sequence[tuple[str, bytes]]) -> bool:
    """Whether a record is a claim."""
    return any(name == CLAIM for name, _ in headers)
