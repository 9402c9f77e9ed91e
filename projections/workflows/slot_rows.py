"""Rows of slots: who has one of a limit of concurrency, or waits for one; and what a batch changes.

A row comes, may be granted, and goes; what happens to it within a batch is merged here.
"""

from collections.abc import Iterator

import msgspec

from headwater.processors.runs.slots import SLOTS_ID, holder_of
from headwater.projections.projector.plan import Work, works
from headwater.schemas.history import (
    HistoryAppended,
    Json,
    SlotQueued,
    SlotReturned,
    SlotsGiven,
)

__all__ = ["SlotPatches", "counts_slots"]


class SlotRow(msgspec.Struct, kw_only=True, gc=False):
    """A run that has a slot, or waits for one."""

    workflow_name: str
    instance_id: str
    number: int
    key: Json | None
    holder_id: str
    holder_run: int
    asked_at_ms: int
    granted_at_ms: int | None = None


class Granted(msgspec.Struct, frozen=True, gc=False):
    """All who have waited up to a number have a slot since a time."""

    workflow_name: str
    instance_id: str
    through: int
    at_ms: int


class Returned(msgspec.Struct, frozen=True, gc=False):
    """A place that nobody has any more."""

    workflow_name: str
    instance_id: str
    number: int


def counts_slots(instance_id: str) -> bool:
    """Whether an instance is one that counts slots: it has no row of its own."""
    return instance_id.startswith(SLOTS_ID)


class SlotPatches:
    """What a batch changes of slots."""

    def __init__(self) -> None:
        #: By whoever counts them, and number.
        self._rows: dict[tuple[str, str], dict[int, SlotRow]] = {}
        self._granted: list[Granted] = []
        self._returned: list[Returned] = []

    def tell(self, record: HistoryAppended) -> None:
        """Adds what a record of an instance that counts slots changes."""
        key = (record.workflow, record.instance_id)
        rows = self._rows.setdefault(key, {})
        for event in record.events:
            match event:
                case SlotQueued():
                    holder_id, holder_run = holder_of(event.ticket)
                    rows[event.number] = SlotRow(
                        workflow_name=record.workflow,
                        instance_id=record.instance_id,
                        number=event.number,
                        key=event.key,
                        holder_id=holder_id,
                        holder_run=holder_run,
                        asked_at_ms=record.at_ms,
                    )
                case SlotsGiven():
                    self._granted.append(Granted(*key, event.through, record.at_ms))
                    for row in rows.values():
                        if row.number <= event.through and row.granted_at_ms is None:
                            row.granted_at_ms = record.at_ms
                case SlotReturned():
                    if rows.pop(event.number, None) is None:
                        self._returned.append(Returned(*key, event.number))
                case _:
                    pass

    def works(self) -> Iterator[Work]:
        """The statements, in the order to run them: what was there before is granted first."""
        rows = [row for of_limit in self._rows.values() for row in of_limit.values()]
        yield from works("workflow_slot_grants", self._granted)
        yield from works("workflow_slot", self._returned, delete=True)
        yield from works("workflow_slot", rows)
