"""What normalizing a delivery can come to."""

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from headwater.processors.columns import RowUpdate
from headwater.schemas.history import SendEvent, StartRun

#: Reason of a delivery none of whose records can be taken.
NO_USABLE_RECORD: Final = "no_usable_record"


class Rejected(msgspec.Struct, frozen=True):
    """A record of a delivery that cannot be taken; detail names its place."""

    code: str
    detail: str


class Effect(msgspec.Struct, frozen=True):
    """What a delivery does to an instance of a workflow: it starts it, or sends it an event.

    Shape:  name tells it from other effects of the delivery; of two with one name the first counts.
            The event id of a SendEvent stays empty, and so does the sender.
    """

    name: str
    workflow: str
    instance_id: str
    command: StartRun | SendEvent


class Normalized(msgspec.Struct, frozen=True):
    """What a delivery comes to: the rows that it sets columns of, and what it does to workflows.

    Shape:  rejected are the records of it that set none.
    """

    updates: tuple[RowUpdate, ...]
    rejected: tuple[Rejected, ...] = ()
    effects: tuple[Effect, ...] = ()


class Skipped(msgspec.Struct, frozen=True):
    """A delivery that is understood and holds nothing to store; or little, which is its updates."""

    reason: str
    updates: tuple[RowUpdate, ...] = ()


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


def updates_of(result: NormalizeResult) -> tuple[RowUpdate, ...]:
    """The rows that a delivery sets columns of."""
    return () if isinstance(result, Failed) else result.updates


def details_of(rejected: Sequence[Rejected]) -> str:
    """The rejected records for people, a line each."""
    return "\n".join(f"{each.code}: {each.detail}" for each in rejected)
