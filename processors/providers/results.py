"""What normalizing a delivery can come to."""

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from headwater.processors.columns import RowUpdate

#: Reason of a delivery none of whose records can be taken.
NO_USABLE_RECORD: Final = "no_usable_record"


class Rejected(msgspec.Struct, frozen=True):
    """A record of a delivery that cannot be taken; detail names its place."""

    code: str
    detail: str


class Normalized(msgspec.Struct, frozen=True):
    """The rows that a delivery sets columns of, and the records of it that set none."""

    updates: tuple[RowUpdate, ...]
    rejected: tuple[Rejected, ...] = ()


class Skipped(msgspec.Struct, frozen=True):
    """A delivery that is understood and holds nothing to store."""

    reason: str


class Failed(msgspec.Struct, frozen=True):
    """A delivery that cannot be stored as it is: a dead letter, with the reason.

    Shape:  rejected is the number of its records, where they are the reason.
    """

    code: str
    detail: str
    rejected: int = 0


NormalizeResult: TypeAlias = Normalized | Skipped | Failed


def normalized(updates: Sequence[RowUpdate], rejected: Sequence[Rejected]) -> Normalized | Failed:
    """What a delivery of records comes to: those that can be taken are.

    Shape:  Failed if there are rejected records and no updates.
    """
    if rejected and not updates:
        return Failed(NO_USABLE_RECORD, details_of(rejected), len(rejected))
    return Normalized(tuple(updates), tuple(rejected))


def details_of(rejected: Sequence[Rejected]) -> str:
    """The rejected records for people, a line each."""
    return "\n".join(f"{each.code}: {each.detail}" for each in rejected)
