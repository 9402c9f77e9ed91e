"""Definition of a projection, and the plan of what a batch of records changes in Postgres.

Planning never fails because of a record. A record that cannot be read becomes a row of
`projection_errors`, so that it neither blocks others nor disappears. The parameters of statements
are built here, while Postgres is still busy with the previous batch.

Each projection has its own consumer group, connection and offsets, so that none delays another.
`projections.catalogue` lists them.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec
import orjson
from typing_extensions import TypeIs

from headwater.processors.runs.claims import Claims
from headwater.projections.postgres.binary_rows import RowType
from headwater.schemas.errors import HeadwaterError
from headwater.schemas.newer import Logged

#: A row with the field names of its statement.
SqlRow: TypeAlias = dict[str, Any]

#: Exceptions when a record cannot be decoded, or has a time out of range.
UNREADABLE: Final = (HeadwaterError, ValueError, OverflowError, OSError, msgspec.MsgspecError)


class LogRecord(Logged, Protocol):
    """A record of the log, as returned by aiokafka."""

    @property
    def timestamp(self) -> int: ...  # noqa: D102
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...  # noqa: D102


def refusal(record: LogRecord, error: str) -> SqlRow:
    """Return the row of `projection_errors` for a record."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "error": error,
        "value": base64_text(record.value),
    }


def base64_text(data: bytes | None) -> str | None:
    """Return bytes as text for JSON."""
    return None if data is None else b64encode(data).decode()


# -- plans

Partition: TypeAlias = tuple[str, int]

#: Rows per statement; more are not faster (21 µs per row with 1,000 rows, 30 µs with 4,000).
ROWS_MAX: Final = 1_000
#: Postgres's text cannot hold NUL, so it becomes the replacement character.
_NUL: Final = "\0"
_REPLACEMENT: Final = "\ufffd"


class Span(NamedTuple):
    """Offsets of a partition in a batch, from `start` to before `end`.

    Offsets without a record were removed by compaction.
    """

    start: int
    end: int


class RowStatement(NamedTuple):
    """One statement that upserts or deletes rows of a table.

    Attributes:
        table: Key of `writes.UPSERTS` or DELETES; most are the table's name.
        rows: JSON array, or binary rows of the projection's type for them.
    """

    table: str
    rows: str | Sequence[bytes]
    delete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The statements for some records, and how many of these could not be read."""

    statements: tuple[RowStatement, ...]
    unreadable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Records to apply together, by partition in order of offset.

    Attributes:
        records: Admitted records only.
        claims: Claims at the end of each span; empty for projections without claims.
    """

    records: Sequence[LogRecord]
    spans: Mapping[Partition, Span]
    plan: Plan
    claims: Mapping[Partition, Claims] = field(default_factory=dict)
    #: Leader epoch of the last record of each span, or a later one.
    leader_epochs: Mapping[Partition, int] = field(default_factory=dict)
    #: Times of the first and the last record of each span, in Unix milliseconds.
    times: Mapping[Partition, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The part of a batch that Postgres does not have yet.

    Attributes:
        records: New records; None if the whole batch is new.
        behind: Partitions for which Postgres has less than the batch requires; applying them would
            leave a gap.
    """

    records: Sequence[LogRecord] | None
    offsets: Mapping[Partition, int]
    behind: frozenset[Partition]


def admit(batch: Batch, stored: Mapping[Partition, int]) -> Admitted:
    """Return the part of a batch to apply.

    Args:
        batch: The batch.
        stored: Next offset in Postgres by partition; 0 if it is missing.
    """
    offsets: dict[Partition, int] = {}
    behind: set[Partition] = set()
    for partition, span in batch.spans.items():
        next_offset = stored.get(partition, -1)
        if next_offset < span.start:
            behind.add(partition)
        elif next_offset < span.end:
            offsets[partition] = span.end
    whole = all(
        partition in offsets and stored[partition] == span.start
        for partition, span in batch.spans.items()
    )
    return Admitted(
        records=None if whole else [r for r in batch.records if _is_new(r, stored, offsets)],
        offsets=offsets,
        behind=frozenset(behind),
    )


def row_statements(
    table: str,
    rows: Sequence[SqlRow] | Sequence[bytes],
    *,
    delete: bool = False,
    verbatim: frozenset[str] = frozenset(),
) -> Iterator[RowStatement]:
    """Yield the statements that write rows to a table, or delete them.

    Args:
        table: The table.
        rows: The rows.
        delete: Whether to delete the rows.
        verbatim: As in `payload`.
    """
    for start in range(0, len(rows), ROWS_MAX):
        page = rows[start : start + ROWS_MAX]
        yield RowStatement(table, page if _are_binary(page) else payload(page, verbatim), delete)


def payload(rows: Sequence[SqlRow], verbatim: frozenset[str] = frozenset()) -> str:
    """Return rows of one kind as the JSON parameter of a statement.

    Args:
        rows: The rows. A NUL in a text becomes U+FFFD.
        verbatim: Fields with authors' JSON, in which NUL is not replaced: Postgres rejects such
            invalid JSON, and replacing NUL must not make it valid.
    """
    encoded = orjson.dumps(rows)
    if b"\\u0000" in encoded:  # a NUL, or its escape within JSON text
        encoded = orjson.dumps([_without_nul(row, verbatim) for row in rows])
    return encoded.decode()


def _are_binary(rows: Sequence[SqlRow] | Sequence[bytes]) -> TypeIs[Sequence[bytes]]:
    return isinstance(rows[0], bytes)


def _without_nul(row: SqlRow, verbatim: frozenset[str]) -> dict[str, object]:
    return {name: value if name in verbatim else _replaced(value) for name, value in row.items()}


def _replaced(value: object) -> object:
    match value:
        case str():
            return value.replace(_NUL, _REPLACEMENT)
        case list() | tuple():
            return [_replaced(item) for item in value]
        case dict():
            return {name: _replaced(item) for name, item in value.items()}
        case _:
            return value


def _is_new(
    record: LogRecord, stored: Mapping[Partition, int], offsets: Mapping[Partition, int]
) -> bool:
    partition = (record.topic, record.partition)
    return partition in offsets and record.offset >= stored[partition]


def one_by_one(
    records: Iterable[LogRecord], statement_of: Callable[[LogRecord], RowStatement | None]
) -> Plan:
    """Plan records in order; `statement_of` may raise the exceptions in `UNREADABLE`.

    For topics in which each record depends on earlier ones. Such a topic has one partition and few
    records, and every process folds it. Only Postgres has the earlier records here, so each record
    is one statement, by which Postgres decides with the same rules as the fold, or none if there
    are no rows of it.
    """
    statements: list[RowStatement] = []
    refused = 0
    for record in records:
        if record.value is None:
            continue  # It deletes an earlier record, of which nothing was needed any more.
        try:
            if (statement := statement_of(record)) is not None:
                statements.append(statement)
        except UNREADABLE as error:
            refused += 1
            statements.append(
                RowStatement("projection_errors", payload([refusal(record, str(error))]))
            )
    return Plan(statements=tuple(statements), unreadable=refused)


# -- projections

#: Plans statements for records in partition order; never fails because of a record.
Planner: TypeAlias = Callable[[Iterable[LogRecord]], Plan]


def admit_all(records: Sequence[LogRecord], _: Claims) -> Sequence[LogRecord]:
    """Admit all records: the topic has no claims."""
    return records


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A projection.

    Attributes:
        name: Name of its offsets in Postgres.
        read: Takes records of one partition and the claims before them, updates the claims, and
            returns the admitted records as `plan` expects them.
        row_types: Types of rows that it plans in binary, by table.
        is_synced: Whether readers follow its tables with cursors.
        is_waited_for: Whether the gateway responds to a write when this projection has applied it.
            Its commits then survive a crash of Postgres, so that a response stays true.
    """

    name: str
    group: str
    topics: tuple[str, ...]
    plan: Planner
    read: Callable[[Sequence[LogRecord], Claims], Sequence[LogRecord]] = admit_all
    row_types: Mapping[str, RowType] = field(default_factory=dict)
    is_synced: bool = False
    is_waited_for: bool = False
