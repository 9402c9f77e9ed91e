"""Comparing the audit log with its rows: what was changed in Postgres is named.

The hashes are computed again, from the first record on. A row that is not what its record says is a
finding, and so is one that is missing, or that no record has made. Whoever has kept a hash
elsewhere, an anchor, finds out whether the log itself is still what it was.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from headwater.projections.audit.chain import GENESIS, Entry, entry_of, linked
from headwater.projections.audit.queries import Chained
from headwater.projections.projector.records import UNREADABLE
from headwater.schemas.audit import OperationAudited
from headwater.schemas.codec import decode

__all__ = ["Finding", "LogEntry", "Verification"]

#: Findings that are kept; of those beyond them only the number is.
_KEPT: Final = 100


class LogEntry(NamedTuple):
    """A record of the log."""

    offset: int
    value: bytes | None


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it was written."""

    offset: int
    what: str


class Verification:
    """What has come of comparing so far.

    Shape:  projected is up to where the log had rows before any of it was read: beyond it rows may
            be missing. `head` and `offset` are of the last entry; -1 before the first.
    """

    def __init__(self, projected: int, anchors: Mapping[int, bytes]) -> None:
        self.head = GENESIS
        self.offset = -1
        self.entries = 0
        self.unreadable = 0
        self.findings: list[Finding] = []
        self.found = 0
        self._projected = projected
        self._anchors = dict(anchors)
        self._next = 0
        self._chain_broken = False

    def take(self, records: Iterable[LogEntry], rows: Sequence[Chained]) -> None:
        """Compares records, which go on where the last ended, with the rows at their offsets."""
        by_offset = {row.entry.offset: row for row in rows}
        for record in records:
            if record.offset != self._next:
                self._find(self._next, f"the log has no entries from here to {record.offset - 1}")
            self._next = record.offset + 1
            self._compare(record, by_offset.pop(record.offset, None))
        self.left_over(list(by_offset.values()))

    def left_over(self, rows: Sequence[Chained]) -> None:
        """Takes rows that no record has made."""
        for row in rows:
            self._find(row.entry.offset, f"the row {row.entry.id} is not in the log")

    def finish(self) -> None:
        """Ends: anchors that were not come by are of a log that was longer."""
        for offset in self._anchors:
            self._find(offset, "the log has no entry here, and the anchor is of one")

    def _compare(self, record: LogEntry, row: Chained | None) -> None:
        try:
            entry = entry_of(decode(record.value, OperationAudited), record.offset)
        except UNREADABLE:
            self.unreadable += 1
            self.left_over([row] if row else [])
            return
        self.entries += 1
        self.head, self.offset = linked(self.head, entry), record.offset
        anchor = self._anchors.pop(record.offset, self.head)
        if anchor != self.head:
            was, now = anchor.hex(), self.head.hex()
            self._find(record.offset, f"the log up to here is not what it was: {was} is now {now}")
        if row is not None:
            self._compare_row(entry, row)
        elif record.offset < self._projected:
            self._find(record.offset, f"the row {entry.id} is missing")

    def _compare_row(self, entry: Entry, row: Chained) -> None:
        theirs = msgspec.structs.asdict(row.entry)
        ours = msgspec.structs.asdict(entry)
        for name in [name for name, value in ours.items() if theirs[name] != value]:
            changed = f"{ours[name]!r} is now {theirs[name]!r}"
            self._find(entry.offset, f"{name} of the row {entry.id} was changed: {changed}")
        if row.hash != self.head and not self._chain_broken:
            # All that follow may differ as well: once is enough.
            self._chain_broken = True
            self._find(entry.offset, "the hashes of rows are not those of the log from here on")

    def _find(self, offset: int, what: str) -> None:
        self.found += 1
        if len(self.findings) < _KEPT:
            self.findings.append(Finding(offset, what))
