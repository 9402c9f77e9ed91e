"""The audit log in Postgres: rows in a hash chain, queries, and comparison with the topic.

An entry is hashed as JSON with sorted names, without spaces, in UTF-8, after the hash of the
previous row of its project. So the hashes can be recomputed from the entries, and a hash stored
elsewhere shows whether anything of the project before it was changed.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from headwater.projections.audit_checkpoints import CHECKPOINT, checkpoint_of, is_signed
from headwater.projections.postgres.connections import PooledReader, Row, bounded
from headwater.projections.postgres.cursors import pack, unpack
from headwater.projections.postgres.statements import statement
from headwater.projections.projector.projection import (
    UNREADABLE,
    LogRecord,
    Plan,
    Projection,
    RowStatement,
    SqlRow,
    payload,
    refusal,
    row_statements,
)
from headwater.projections.projector.store import next_offsets
from headwater.schemas.codec import decode
from headwater.schemas.records import OperationAudited
from headwater.schemas.topics import AUDIT as TOPIC

#: Hash before the first entry.
GENESIS: Final = bytes(hashlib.sha256().digest_size)
#: Postgres's text cannot hold NUL.
_NUL: Final = "\0"
_REPLACEMENT: Final = "\ufffd"


class EntryFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An entry without its metadata; `created_at` is RFC 3339 with milliseconds, in UTC."""

    id: str
    key_id: str | None
    project_id: str | None
    action: str
    resource: str
    result: str
    ip: str | None
    user_agent: str | None
    created_at: str
    offset: int


class Entry(EntryFields, frozen=True, kw_only=True):
    """An entry as in its row."""

    metadata_json: str | None


def entry_of(record: OperationAudited, offset: int) -> Entry:
    """Return the entry of a record.

    Raises:
        ValueError, OverflowError, OSError: The time is out of range.
    """
    at = datetime.fromtimestamp(record.at_ms / 1000, UTC)
    texts = msgspec.structs.asdict(record)
    del texts["at_ms"]
    texts["metadata_json"] = texts.pop("metadata")
    return Entry(
        **{name: text.replace(_NUL, _REPLACEMENT) for name, text in texts.items()},
        created_at=at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        offset=offset,
    )


def canonical(entry: Entry) -> str:
    """Return the text of an entry that is hashed."""
    fields = msgspec.structs.asdict(entry)
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def linked(previous: bytes, entry: Entry) -> bytes:
    """Return the hash of an entry, from the previous hash."""
    return hashlib.sha256(previous + canonical(entry).encode()).digest()


# -- rows


def plan_entries(records: Iterable[LogRecord]) -> Plan:
    """Plan records of `audit`.

    Only Postgres has the previous row here: the statement computes the hash of a row
    (`audit_chain`) from the canonical text of its entry.
    """
    rows: list[SqlRow] = []
    refused: list[RowStatement] = []
    for record in records:
        try:
            entry = entry_of(decode(record.value, OperationAudited), record.offset)
        except UNREADABLE as error:
            refused.append(
                RowStatement("projection_errors", payload([refusal(record, str(error))]))
            )
        else:
            rows.append(msgspec.structs.asdict(entry) | {"entry": canonical(entry)})
    return Plan(statements=(*row_statements("audit_logs", rows), *refused), unreadable=len(refused))


#: Projects the audit log.
AUDIT: Final = Projection(
    name="audit",
    group="headwater-audit-projector",
    topics=(TOPIC,),
    plan=plan_entries,
)


# -- queries

#: After all offsets.
OFFSET_TOP: Final = 2**63 - 1
_OFFSET: Final[Any] = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_TOP)]


class Chained(msgspec.Struct, frozen=True):
    """An entry with the hash of its row."""

    entry: Entry
    hash: bytes


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of entries; None has no effect."""

    project_id: str | None = None
    action: str | None = None
    result: str | None = None
    key_id: str | None = None
    run_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


async def newest(
    reader: PooledReader, filters: AuditFilter, *, limit: int, cursor: str | None = None
) -> tuple[list[Chained], str | None]:
    """Return entries, newest first, and the cursor of the next page or None.

    Raises:
        InvalidCursor: The cursor cannot be read.
        StoreUnavailable: Postgres does not answer.
    """
    limit = bounded(limit)
    before: int = OFFSET_TOP if cursor is None else unpack(cursor, _OFFSET)
    parameters = msgspec.structs.asdict(filters) | {"before": before, "limit": limit + 1}
    rows = await reader.answers(statement("audit_logs"), **parameters)
    entries = [_chained(row) for row in rows[:limit]]
    return entries, pack(entries[-1].entry.offset) if len(rows) > limit else None


async def between(
    reader: PooledReader,
    first: int,
    last: int = OFFSET_TOP,
    *,
    limit: int | None = None,
    project_id: str | None = None,
) -> list[Chained]:
    """Return entries in the order of the log, both ends included, of a project or of all.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    parameters = {"first": first, "last": last, "limit": limit, "project_id": project_id}
    rows = await reader.answers(statement("audit_logs_between"), **parameters)
    return [_chained(row) for row in rows]


async def heads_at(reader: PooledReader, last: int) -> dict[str, bytes]:
    """Return the hash of the last entry of every project, up to an offset.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("audit_heads"), last=last)
    return {row["project_id"]: row["hash"] for row in rows}


async def next_offset(reader: PooledReader) -> int:
    """Return the next offset of the log to project.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    return (await next_offsets(reader, AUDIT.name, TOPIC)).get(0, 0)


def _chained(row: Row) -> Chained:
    digest: bytes = row.pop("hash")
    return Chained(Entry(**row), digest)


# -- verification

#: Maximum findings that are stored; further ones are only counted.
_KEPT: Final = 100
#: Entries before a checkpoint among which is the one that it is about. Postgres may lag behind.
_RECENT: Final = 100_000


class LogEntry(NamedTuple):
    """A record of the log."""

    offset: int
    value: bytes | None


class Finding(msgspec.Struct, frozen=True):
    """A difference between the log and its rows or anchors."""

    offset: int
    what: str


class Head(NamedTuple):
    """Offset and hash of the last entry of a project."""

    offset: int
    hash: bytes


class Verification:
    """Progress and result of a comparison.

    The hashes are recomputed from the first record, by project. Findings are records that cannot be
    read, rows that differ from their record, are missing, or have no record, and checkpoints that
    state another hash. A hash that was stored elsewhere (an anchor), and checkpoints that one of
    the keys signed, show whether the log itself was changed.

    Args:
        projected: Next offset to project when the comparison began: later rows may be missing.
        anchors: Hashes by offset that were stored elsewhere.
        keys: Keys of checkpoints; without any, signatures are not verified.

    Attributes:
        heads: Last entry by project.
        offset: Offset of the last entry; -1 before the first.
        found: Number of findings.
        signed: Number of checkpoints that one of the keys signed.
        signed_to: Offset up to which such a checkpoint covers its project's entries; -1 without.
        unverified: Number of checkpoints with a signature that was not verified, or none.
    """

    def __init__(
        self, projected: int, anchors: Mapping[int, bytes], keys: Sequence[str] = ()
    ) -> None:
        self.heads: dict[str, Head] = {}
        self.offset = -1
        self.signed = 0
        self.signed_to = -1
        self.unverified = 0
        self._keys = tuple(keys)
        #: Latest hashes by offset, for checkpoints, which state one of shortly before.
        self._recent: dict[int, bytes] = {}
        self.entries = 0
        self.unreadable = 0
        self.findings: list[Finding] = []
        self.found = 0
        self._projected = projected
        self._anchors = dict(anchors)
        self._next = 0
        #: Projects with rows of which a difference of hashes was reported.
        self._broken: set[str] = set()

    @property
    def head(self) -> bytes:
        """Hash of the last entry of the log."""
        return max(self.heads.values(), default=Head(-1, GENESIS)).hash

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
        except UNREADABLE as error:
            self.unreadable += 1
            self._report(record.offset, f"the record cannot be read: {error}")
            self.report_unmatched([row] if row else [])
            return
        self.entries += 1
        hash_now = self._link(entry)
        if entry.action == CHECKPOINT:
            self._compare_checkpoint(entry)
        anchor = self._anchors.pop(record.offset, hash_now)
        if anchor != hash_now:
            was, now = anchor.hex(), hash_now.hex()
            self._report(
                record.offset,
                f"the log up to here was changed: its hash was {was} and is now {now}",
            )
        if row is not None:
            self._compare_row(entry, row)
        elif record.offset < self._projected:
            self._report(record.offset, f"the row {entry.id} is missing")

    def _link(self, entry: Entry) -> bytes:
        """Return the hash of the next entry of its project."""
        project = entry.project_id or ""
        previous = self.heads.get(project, Head(-1, GENESIS)).hash
        hash_now = linked(previous, entry)
        self.heads[project] = Head(entry.offset, hash_now)
        self.offset = entry.offset
        self._recent[entry.offset] = hash_now
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
        return hash_now

    def _compare_checkpoint(self, entry: Entry) -> None:
        checkpoint = checkpoint_of(entry.metadata_json)
        if checkpoint is None or checkpoint.project != entry.project_id:
            self._report(entry.offset, f"the checkpoint {entry.id} cannot be read")
            return
        actual = self._recent.get(checkpoint.offset)
        if actual is None or actual.hex() != checkpoint.hash:
            now = "no such entry shortly before" if actual is None else actual.hex()
            self._report(
                entry.offset,
                f"the checkpoint {entry.id} states the hash {checkpoint.hash} at "
                f"{checkpoint.offset}, and the log has {now}",
            )
        elif not self._keys:
            self.unverified += 1
        elif is_signed(checkpoint, self._keys):
            self.signed += 1
            self.signed_to = checkpoint.offset
        elif checkpoint.signature:
            self._report(entry.offset, f"none of the keys signed the checkpoint {entry.id}")
        else:
            self.unverified += 1

    def _compare_row(self, entry: Entry, row: Chained) -> None:
        theirs = msgspec.structs.asdict(row.entry)
        ours = msgspec.structs.asdict(entry)
        for name in [name for name, value in ours.items() if theirs[name] != value]:
            changed = f"{ours[name]!r} is now {theirs[name]!r}"
            self._report(entry.offset, f"{name} of the row {entry.id} was changed: {changed}")
        project = entry.project_id or ""
        if row.hash != self.heads[project].hash and project not in self._broken:
            # The following rows may differ as well: report it once.
            self._broken.add(project)
            self._report(
                entry.offset, "from here on the hashes of rows differ from those of the log"
            )

    def _report(self, offset: int, what: str) -> None:
        self.found += 1
        if len(self.findings) < _KEPT:
            self.findings.append(Finding(offset, what))
