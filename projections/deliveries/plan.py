"""The projection of deliveries: the newest record of a key is a row."""

from collections.abc import Iterable, Sequence
from typing import Final

from headwater.processors.epochs import NewestEpoch
from headwater.processors.runs.claims import Claims
from headwater.projections.deliveries.row_readers import ROW_TYPES
from headwater.projections.deliveries.rows import READERS, TOPICS, Rows, refuse_unknown
from headwater.projections.projector.plan import Plan, row_statements
from headwater.projections.projector.projection import Projection
from headwater.projections.projector.records import LogRecord
from headwater.schemas.epochs import CLAIM_KEY, epoch_of

__all__ = ["DELIVERIES", "plan"]


def plan(records: Iterable[LogRecord]) -> Plan:
    """Plan records of any topics, each partition in order."""
    by_topic: dict[str, list[LogRecord]] = {}
    for record in records:
        by_topic.setdefault(record.topic, []).append(record)
    rows = Rows()
    for topic, group in by_topic.items():
        READERS.get(topic, refuse_unknown)(group, rows)
    deletes = [
        row_statement
        for table, keyed in rows.deletes.items()
        for row_statement in row_statements(table, list(keyed.values()), delete=True)
    ]
    upserts = [
        row_statement
        for table, rounds in rows.upserts.items()
        for keyed in rounds
        for row_statement in row_statements(table, list(keyed.values()))
    ]
    unreadable = sum(map(len, rows.upserts.get("projection_errors", ())))
    return Plan(statements=(*deletes, *upserts), unreadable=unreadable)


def _admitted(records: Sequence[LogRecord], claims: Claims) -> Sequence[LogRecord]:
    """Return the admitted records without claims, and update the newest epoch."""
    newest = NewestEpoch(claims.epoch)
    admitted = [
        record for record in records if newest.admit(_epoch_of(record)) and record.key != CLAIM_KEY
    ]
    claims.epoch = newest.epoch
    return admitted


def _epoch_of(record: LogRecord) -> int | None:
    try:
        return epoch_of(record.headers)
    except ValueError:
        return None  # An owner did not write it; its type follows from its bytes.


#: Projects the tables, outcomes, duplicates and dead letters.
DELIVERIES: Final = Projection(
    name="headwater",
    group="headwater-projector",
    topics=TOPICS,
    read=_admitted,
    plan=plan,
    row_types=ROW_TYPES,
    is_synced=True,
)
