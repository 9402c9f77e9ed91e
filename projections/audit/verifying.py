"""Compare the audit log with its rows, and report what was changed in Postgres.

The hashes are recomputed from the first record. Findings are rows that differ from their record,
are missing, or have no record. A hash that was stored elsewhere, an anchor, shows whether the log
itself was changed.
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

#: Maximum findings that are stored; further ones are only counted.
_KEPT: Final = 100


class LogEntry(NamedTuple):
    """A record of the log."""

    offset: int
    value: bytes | None


class Finding(msgspec.Struct, frozen=True):
    """A difference between the log and its rows or anchors."""

    offset: int
    what: str


class Verification:
    """Progress and result of a comparison.

    Attributes:
        head: Hash of the last entry.
        offset: Offset of the last entry; -1 before the first.
        found: Number of findings.
    """

    def __init__(self, projected: int, anchors: Mapping[int, bytes]) -> None:
        self.head = GENESIS
        self.offset = -1
        self.entries = 0
        self.unreadable = 0
        self.findings: list[Finding] = []
        self.found = 0
        #: Next offset to project when the comparison began: later rows may be missing.
        self._projected = projected
        self._anchors = dict(anchors)
        self._next = 0
        self._chain_broken = False

    def compare(self, records: Iterable[LogEntry], rows: Sequence[Chained]) -> None:
        """Compare the next records of the log with the rows at their offsets."""
        by_offset = {row.entry.offset: row for row in rows}
        for record in records:
            if record.offset != self._next:
                self._report(self._next, f"the log has no entries from here to {record.offset - 1}")
            self._next = record.offset + 1
            self._compare_record(record, by_offset.pop(record.offset, None))
        self.report_unmatched(list(by_offset.values()))

    def report_unmatched(self, rows: Sequence[Chained]) -> None:
        """Report rows without a record."""
        for row in rows:
            self._report(row.entry.offset, f"the row {row.entry.id} is not in the log")

    def finish(self) -> None:
        """Finish the comparison: anchors that were not reached belong to a longer log."""
        for offset in self._anchors:
            self._report(offset, "the anchor is of an entry that the log does not have")

    def _compare_record(self, record: LogEntry, row: Chained | None) -> None:
        try:
            entry = entry_of(decode(record.value, OperationAudited), record.offset)
        except UNREADABLE:
            self.unreadable += 1
            self.report_unmatched([row] if row else [])
            return
        self.entries += 1
        self.head, self.offset = linked(self.head, entry), record.offset
        anchor = self._anchors.pop(record.offset, self.head)
        if anchor != self.head:
            was, now = anchor.hex(), self.head.hex()
            self._report(
                record.offset,
                f"the log up to here was changed: its hash was {was} and is now {now}",
            )
        if row is not None:
            self._compare_row(entry, row)
        elif record.offset < self._projected:
            self._report(record.offset, f"the row {entry.id} is missing")

    def _compare_row(self, entry: Entry, row: Chained) -> None:
        theirs = msgspec.structs.asdict(row.entry)
        ours = msgspec.structs.asdict(entry)
        for name in [name for name, value in ours.items() if theirs[name] != value]:
            changed = f"{ours[name]!r} is now {theirs[name]!r}"
            self._report(entry.offset, f"{name} of the row {entry.id} was changed: {changed}")
        if row.hash != self.head and not self._chain_broken:
            # The following rows may differ as well: report it once.
            self._chain_broken = True
            self._report(
                entry.offset, "from here on the hashes of rows differ from those of the log"
            )

    def _report(self, offset: int, what: str) -> None:
        self.found += 1
        if len(self.findings) < _KEPT:
            self.findings.append(Finding(offset, what))
