"""Read `workflow-history`: decode records and drop those of superseded owners.

Superseded records are dropped before planning. The log alone determines which ones they are, from
the claims that Postgres stores with the offset where reading began. Claims are always admitted:
they name the owners.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from headwater.processors.runs.claims import Claims
from headwater.projections.projector.projection import UNREADABLE, LogRecord
from headwater.schemas.codec import decode
from headwater.schemas.history import HistoryAppended, PartitionClaimed

#: Name of the projection's offsets in Postgres.
PROJECTION: Final = "workflows"


class HistoryRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An admitted record, decoded; or a record that cannot be read.

    Attributes:
        appended: None exactly if `error` is not empty.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    appended: HistoryAppended | None
    error: str = ""


def read_history(records: Sequence[LogRecord], claims: Claims) -> list[LogRecord]:
    """Decode records of one partition and drop superseded ones.

    Args:
        records: Records in the order of the log.
        claims: Claims before the first record; updated to those after the last.
    """
    return list(_admitted(records, claims))


def _admitted(records: Sequence[LogRecord], claims: Claims) -> Iterator[LogRecord]:
    for record in records:
        if record.value is None:
            continue  # Tombstone: removes a record of a deleted instance.
        try:
            appended = decode(record.value, HistoryAppended)
        except UNREADABLE as error:
            yield _unread(record, str(error))
            continue
        if not appended.events:
            yield _unread(record, "expected at least one event, found none")
        elif claims.admit(record.offset, appended) or _is_claim(appended):
            yield _read(record, appended)
        elif appended.epoch > claims.epoch:
            yield _unread(
                record,
                f"expected an epoch up to {claims.epoch}, the offset of the latest claim, found "
                f"{appended.epoch}; usual cause: a claim that this release cannot read",
            )


def _is_claim(appended: HistoryAppended) -> bool:
    return isinstance(appended.events[0], PartitionClaimed)


def _read(record: LogRecord, appended: HistoryAppended | None, error: str = "") -> HistoryRecord:
    return HistoryRecord(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
        key=record.key,
        value=record.value,
        headers=record.headers,
        appended=appended,
        error=error,
    )


def _unread(record: LogRecord, error: str) -> HistoryRecord:
    return _read(record, None, error)
