"""Possible results of normalizing a delivery."""

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from headwater.processors.columns import RowUpdate
from headwater.schemas.history import SendEvent, StartRun

#: Reason of a delivery without any usable record.
NO_USABLE_RECORD: Final = "no_usable_record"


class Rejected(msgspec.Struct, frozen=True):
    """A record of a delivery that is rejected; `detail` has its position."""

    code: str
    detail: str


class Effect(msgspec.Struct, frozen=True):
    """Effect of a delivery on a workflow instance: starts it, or sends it an event.

    The event id and the sender of a SendEvent stay empty.

    Attributes:
        name: Distinguishes effects of one delivery; of two with the same name the first counts.
    """

    name: str
    workflow: str
    instance_id: str
    command: StartRun | SendEvent


class Normalized(msgspec.Struct, frozen=True):
    """A normalized delivery: column values of rows, and effects on workflows.

    Attributes:
        rejected: Records that set no columns.
    """

    updates: tuple[RowUpdate, ...]
    rejected: tuple[Rejected, ...] = ()
    effects: tuple[Effect, ...] = ()


class Skipped(msgspec.Struct, frozen=True):
    """A delivery that is understood but has nothing, or little, to store (`updates`)."""

    reason: str
    updates: tuple[RowUpdate, ...] = ()


class Failed(msgspec.Struct, frozen=True):
    """A delivery that cannot be stored and becomes a dead letter.

    Attributes:
        rejected: Number of its records, if they are the reason.
    """

    code: str
    detail: str
    rejected: int = 0


NormalizeResult: TypeAlias = Normalized | Skipped | Failed


def normalized(updates: Sequence[RowUpdate], rejected: Sequence[Rejected]) -> Normalized | Failed:
    """Return the result of a delivery of records: Failed if all of them were rejected."""
    if rejected and not updates:
        return Failed(NO_USABLE_RECORD, details_of(rejected), len(rejected))
    return Normalized(tuple(updates), tuple(rejected))


def updates_of(result: NormalizeResult) -> tuple[RowUpdate, ...]:
    """Return the row updates of a result."""
    return () if isinstance(result, Failed) else result.updates


def details_of(rejected: Sequence[Rejected]) -> str:
    """Return a text with one line per rejected record."""
    return "\n".join(f"{record.code}: {record.detail}" for record in rejected)
