"""The records that notifications are derived from."""

import logging
from collections.abc import Iterable, Iterator
from typing import Final

from headwater.processors.notifications import (
    INSTANCE_TYPES,
    NOTIFY,
    REACT,
    ROW_TYPES,
    Notification,
    NotificationType,
    of_dead_letter,
    of_finding,
    of_history,
    of_row,
)
from headwater.schemas.auditor import AuditorFinding
from headwater.schemas.codec import decode, decode_row, record_name
from headwater.schemas.errors import UndecodableRecord, UnknownSchema
from headwater.schemas.history import HistoryAppended
from headwater.schemas.installed_tables import TABLE_BY_NAME, TABLE_BY_TOPIC
from headwater.schemas.topics import AUDITOR, DEAD_LETTERS, WORKFLOW_HISTORY
from headwater.streams.kafka.dead_letters import (
    CONNECT_PREFIX,
    EVENT_ID,
    EXPIRED,
    REASON,
    REPLAYED,
    REQUEST_ID,
    text_header,
)
from headwater.streams.kafka.records import Incoming, position_of

log = logging.getLogger(__name__)

#: Beginnings of the keys of histories that lead to no notifications.
_OWN: Final = tuple(f"{workflow}/".encode() for workflow in (NOTIFY, REACT))
#: Name of the schema of findings.
_FINDING: Final = "auditor_finding"
#: Headers of a dead letter, by the name that `of_dead_letter` has for their text.
_HEADERS: Final = {
    "topic": CONNECT_PREFIX + "topic",
    "partition": CONNECT_PREFIX + "partition",
    "offset": CONNECT_PREFIX + "offset",
    "stage": CONNECT_PREFIX + "stage",
    "detail": CONNECT_PREFIX + "exception.message",
    "reason": REASON,
    "event_id": EVENT_ID,
    "request_id": REQUEST_ID,
}


def topics_of(types: Iterable[str], tables: Iterable[str] = ()) -> frozenset[str]:
    """Return the topics with the records that notifications of some types are derived from.

    Args:
        types: The types.
        tables: Names of the tables, if rows are among the types; all by default.
    """
    topics = set[str]()
    for type_ in types:
        if type_ in INSTANCE_TYPES:
            topics.add(WORKFLOW_HISTORY)
        elif type_ == NotificationType.DEAD_LETTER:
            topics.add(DEAD_LETTERS)
        elif type_ == NotificationType.AUDITOR_FINDING:
            topics.add(AUDITOR)
        elif type_ in ROW_TYPES:
            known = (
                TABLE_BY_NAME[name] for name in tables or TABLE_BY_NAME if name in TABLE_BY_NAME
            )
            topics.update(table.topic for table in known)
    return frozenset(topics)


def notifications_of(records: Iterable[Incoming]) -> Iterator[Notification]:
    """Yield the notifications that records lead to. What cannot be decoded leads to none."""
    for record in records:
        if record.value is None:
            continue  # A wipe, a replay or a prune removed an earlier record.
        try:
            yield from _derived(record)
        except (UndecodableRecord, UnknownSchema) as error:
            log.warning("%s leads to no notification: %s", position_of(record), error.message)


def _derived(record: Incoming) -> Iterator[Notification]:
    position = record.partition, record.offset
    if record.topic == WORKFLOW_HISTORY:
        if not (record.key or b"").startswith(_OWN):
            yield from of_history(decode(record.value, HistoryAppended), *position)
    elif record.topic == DEAD_LETTERS:
        marks = (text_header(record, name) for name in (REPLAYED, EXPIRED))
        if not any(marks):
            fields = {name: text_header(record, of) or "" for name, of in _HEADERS.items()}
            yield of_dead_letter(fields, *position, record.timestamp)
    elif record.topic == AUDITOR:
        if record_name(record.value) == _FINDING:  # Others are reports.
            notification = of_finding(decode(record.value, AuditorFinding), *position)
            if notification is not None:
                yield notification
    else:
        table = TABLE_BY_TOPIC[record.topic]
        yield of_row(table, decode_row(table, record.value), *position, record.timestamp)
