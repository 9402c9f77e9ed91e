"""What a batch of records does to Postgres, decided without Postgres.

Rule: planning never fails because of a record. What cannot be read becomes a row of
`projection_errors`, so that one bad record neither stops the others nor disappears.

What statements are given is made here, so that it happens while Postgres is still busy with the
batch before.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import msgspec
import orjson
from typing_extensions import TypeIs

from headwater.processors.runs.claims import Claims
from headwater.projections.projector.records import LogRecord, SqlRow

__all__ = [
    "ROWS_MAX",
    "Admitted",
    "Batch",
    "Partition",
    "Plan",
    "Span",
    "Work",
    "admit",
    "payload",
    "works",
]

Partition: TypeAlias = tuple[str, int]

#: Rows of one statement: larger ones gain nothing (21 µs a row at 1,000, 30 at 4,000).
ROWS_MAX: Final = 1_000
#: Postgres's text cannot hold the character NUL; the replacement character says that one was here.
_NUL: Final = "\0"
_REPLACEMENT: Final = "\ufffd"


class Span(NamedTuple):
    """What a batch covers of a partition: offsets from `start` up to, without, `end`.

    Offsets between that hold no record were removed by compaction.
    """

    start: int
    end: int


class Work(NamedTuple):
    """One statement: upsert or delete rows of a table.

    Shape:  table is a key of `statements.UPSERTS` or DELETES; most are named for their table. The
            rows are a JSON array, or rows in binary of the type that the projection has for them.
    """

    table: str
    rows: str | Sequence[bytes]
    delete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The statements of some records, and how many of them could not be read."""

    works: tuple[Work, ...]
    unreadable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Records to apply together: partition by partition, each in the order of its offsets.

    Shape:  records leaves out those that do not count; claims are as the end of each span leaves
            them, and empty for projections of topics that nobody claims.
    """

    records: Sequence[LogRecord]
    spans: Mapping[Partition, Span]
    plan: Plan
    claims: Mapping[Partition, Claims] = field(default_factory=dict)
    #: Of each span, the one in which, or before which, its last record was appended.
    leader_epochs: Mapping[Partition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """What is left of a batch beside what Postgres already has.

    Shape:  records is None when all of the batch is new. `behind` names partitions of which
            Postgres has less than was applied before this batch: to apply it would leave a gap.
    """

    records: Sequence[LogRecord] | None
    offsets: Mapping[Partition, int]
    behind: frozenset[Partition]


def admit(batch: Batch, stored: Mapping[Partition, int]) -> Admitted:
    """Return what of a batch to apply.

    Args:
        batch: The batch.
        stored: The next offset in Postgres by partition; 0 if it is missing.
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


def works(
    table: str,
    rows: Sequence[SqlRow] | Sequence[bytes],
    *,
    delete: bool = False,
    verbatim: frozenset[str] = frozenset(),
) -> Iterator[Work]:
    """Yield the statements that write rows to a table, or delete them.

    Args:
        table: The table.
        rows: The rows.
        delete: Whether they are deleted, not written.
        verbatim: As in `payload`.
    """
    for at in range(0, len(rows), ROWS_MAX):
        some = rows[at : at + ROWS_MAX]
        yield Work(table, some if _are_binary(some) else payload(some, verbatim), delete)


def payload(rows: Sequence[SqlRow], verbatim: frozenset[str] = frozenset()) -> str:
    """Return rows of one kind as the JSON parameter of a statement.

    Args:
        rows: The rows. A NUL in a text becomes U+FFFD.
        verbatim: Fields with JSON of authors, in which NUL stays: Postgres refuses such a text,
            which is not JSON, and must not become JSON here.
    """
    # orjson is twice as fast with dicts, msgspec writes structs without making dicts of them.
    structs = bool(rows) and isinstance(rows[0], msgspec.Struct)
    encoded = msgspec.json.encode(rows) if structs else orjson.dumps(rows)
    if b"\\u0000" in encoded:  # as a character, or written out within JSON text: look closer
        encoded = orjson.dumps([_without_nul(row, verbatim) for row in rows])
    return encoded.decode()


def _are_binary(rows: Sequence[SqlRow] | Sequence[bytes]) -> TypeIs[Sequence[bytes]]:
    return isinstance(rows[0], bytes)


def _without_nul(row: SqlRow, verbatim: frozenset[str]) -> dict[str, object]:
    fields = msgspec.structs.asdict(row) if isinstance(row, msgspec.Struct) else row
    return {name: value if name in verbatim else _replaced(value) for name, value in fields.items()}


def _replaced(value: object) -> object:
    match value:
        case str():
            return value.replace(_NUL, _REPLACEMENT)
        case list() | tuple():
            return [_replaced(each) for each in value]
        case dict():
            return {name: _replaced(each) for name, each in value.items()}
        case _:
            return value


def _is_new(
    record: LogRecord, stored: Mapping[Partition, int], offsets: Mapping[Partition, int]
) -> bool:
    partition = (record.topic, record.partition)
    return partition in offsets and record.offset >= stored[partition]
