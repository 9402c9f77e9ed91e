"""Reading `workflow-history`: which of its records count, and what they hold.

Records that do not count, which a superseded owner wrote, are dropped before anything is planned.
Whether one counts follows from the log alone, so it is decided once, from the claims that Postgres
keeps beside the offset at which reading began. Claims always count: they say who the owners are.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from headwater.processors.runs.claims import Claims
from headwater.projections.projector.records import UNREADABLE, LogRecord
from headwater.schemas.codec import decode
from headwater.schemas.history import HistoryAppended, PartitionClaimed

__all__ = ["PROJECTION", "HistoryRecord", "read_history"]

#: The name of the projection's offsets in Postgres.
PROJECTION: Final = "workflows"


class HistoryRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A record of the log that counts, read; or one that cannot be, and why.

    Shape:  appended is None exactly when `error` is not empty.
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
    """Reads records of one partition and leaves out those that do not count.

    Shape:  claims are those before the first record, and are moved to after the last.
    """
    return list(_counting(records, claims))


def _counting(records: Sequence[LogRecord], claims: Claims) -> Iterator[LogRecord]:
    for record in records:
        if record.value is None:
            continue  # It removes one of an instance that was deleted, which was read by now.
        try:
            appended = decode(record.value, HistoryAppended)
        except UNREADABLE as error:
            yield _unread(record, str(error))
            continue
        if not appended.events:
            yield _unread(record, "expected at least one event, found none")
        elif claims.admit(record.offset, appended) or _claims(appended):
            yield _read(record, appended)
        elif appended.epoch > claims.epoch:
            yield _unread(
                record,
                f"expected an epoch up to {claims.epoch}, the offset of the latest claim, found "
                f"{appended.epoch}; usual cause: a claim that this release cannot read",
            )


def _claims(appended: HistoryAppended) -> bool:
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
