"""Rows of concurrency slots, held or waited for, and what a batch changes in them.

A row is inserted, may be granted, and is deleted. Its changes within a batch are merged here.
"""

from collections.abc import Iterator

import msgspec

from headwater.processors.runs.slots import SLOTS_ID, holder_of
from headwater.projections.projector.plan import RowStatement, row_statements
from headwater.schemas.history import (
    HistoryAppended,
    Json,
    SlotQueued,
    SlotReturned,
    SlotsGiven,
)

__all__ = ["SlotPatches", "is_slots_instance"]


class SlotRow(msgspec.Struct, kw_only=True, gc=False):
    """A run that holds a slot or waits for one."""

    workflow_name: str
    instance_id: str
    number: int
    key: Json | None
    holder_id: str
    holder_run: int
    asked_at_ms: int
    granted_at_ms: int | None = None


class Granted(msgspec.Struct, frozen=True, gc=False):
    """All runs up to a number hold a slot since `at_ms`."""

    workflow_name: str
    instance_id: str
    through: int
    at_ms: int


class Returned(msgspec.Struct, frozen=True, gc=False):
    """A slot or waiting position that was given up."""

    workflow_name: str
    instance_id: str
    number: int


def is_slots_instance(instance_id: str) -> bool:
    """Whether an instance counts slots. Such an instance has no row of its own."""
    return instance_id.startswith(SLOTS_ID)


class SlotPatches:
    """Changes of slots in one batch."""

    def __init__(self) -> None:
        #: By instance that counts them, and number.
        self._rows: dict[tuple[str, str], dict[int, SlotRow]] = {}
        self._granted: list[Granted] = []
        self._returned: list[Returned] = []

    def add_record(self, record: HistoryAppended) -> None:
        """Add the changes of a record of an instance that counts slots."""
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

    def statements(self) -> Iterator[RowStatement]:
        """Yield the statements in order: earlier rows are granted first."""
        rows = [row for by_number in self._rows.values() for row in by_number.values()]
        yield from row_statements("workflow_slot_grants", self._granted)
        yield from row_statements("workflow_slot", self._returned, delete=True)
        yield from row_statements("workflow_slot", rows)
