"""What the owner of a partition knows: rows, the deliveries that wait, and claims of event ids.

All of it comes from compacted topics, record by record, and all of one partition number: the rows
of its users and of its subjects, whichever topic brought the delivery that changes them.
"""

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final, NamedTuple, TypeAlias

import msgspec

from headwater.processors.columns import RowUpdate, merge
from headwater.processors.providers.provider import Lookup
from headwater.schemas.codec import decode, decode_row, encode, encode_row
from headwater.schemas.installed_tables import TABLE_BY_TOPIC
from headwater.schemas.records import WebhookAdmitted, WebhooksClaimed
from headwater.schemas.tables import Row, Table
from headwater.schemas.topics import ADMISSIONS, TOPICS, WAITING
from headwater.streams.kafka.records import Headers, Incoming, Outgoing

_HORIZON_MS: Final = next(t.retention_ms for t in TOPICS if t.name == ADMISSIONS) or 0


class Wanted(NamedTuple):
    """What a delivery waits for: the row of a subject in the table of a lookup."""

    table: str
    subject: str


_RowKey: TypeAlias = tuple[str, tuple[str, ...]]


class PartitionState:
    """What is known of one partition."""

    def __init__(self, partition: int) -> None:
        #: What its records have that carry their writer's epoch; filled once there is one.
        self.headers: Headers = []
        self.claims = Claims(partition)
        self.rows = Rows(partition, self.headers)
        self.waits = Waits(partition, self.headers)

    def restored(self, record: Incoming) -> None:
        """Takes in a record of its memory."""
        if record.topic == ADMISSIONS:
            self.claims.restored(record)
        elif record.topic == WAITING:
            self.waits.restored(record)
        else:
            self.rows.restored(record)

    def again(self, topic: str, keys: Iterable[bytes]) -> list[Outgoing]:
        """The records that say what is known of keys of a topic of rows or waits."""
        known = self.waits if topic == WAITING else self.rows
        return [known.record_of(topic, key) for key in keys]

    def user_of(self, lookup: Lookup, subject: str) -> str | None:
        """The user of a subject, None while nobody has said it."""
        row = self.rows.get(lookup.table, (subject,))
        return None if row is None else lookup.user_in(row.values)


class Claims:
    """The first offset of every event id of a partition, for as long as senders retry."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._offset_of: dict[str, int] = {}
        self._batches: deque[tuple[int, list[str]]] = deque()
        self._fresh: dict[str, int] = {}

    def restored(self, record: Incoming) -> None:
        """Takes in the claims of a batch; of two for one id the lower offset counts."""
        if record.value is None:
            return
        claimed = decode(record.value, WebhooksClaimed)
        for event_id, offset in zip(claimed.event_ids, claimed.offsets, strict=True):
            self._offset_of[event_id] = min(offset, self._offset_of.get(event_id, offset))
        self._batches.append((claimed.admitted_at_ms, claimed.event_ids))

    def first(self, event_id: str, offset: int) -> int:
        """The first offset of an event id; where none is known, this one claims it."""
        known = self._offset_of.get(event_id)
        if known is None:
            self._offset_of[event_id] = self._fresh[event_id] = known = offset
        return known

    def changed(self, now_ms: int) -> list[Outgoing]:
        """The claims since the last call, as one record."""
        if not self._fresh:
            return []
        event_ids, offsets = list(self._fresh), list(self._fresh.values())
        self._fresh.clear()
        self._batches.append((now_ms, event_ids))
        claimed = WebhooksClaimed(event_ids, offsets, now_ms)
        return [Outgoing(ADMISSIONS, self._partition, None, encode(claimed))]

    def expire(self, now_ms: int) -> None:
        """Forgets claims that are older than any sender retries."""
        while self._batches and self._batches[0][0] < now_ms - _HORIZON_MS:
            for event_id in self._batches.popleft()[1]:
                self._offset_of.pop(event_id, None)


class Rows:
    """The rows of a partition, and which of them a batch changed."""

    def __init__(self, partition: int, headers: Headers) -> None:
        self._partition = partition
        self._headers = headers
        self._rows: dict[_RowKey, Row] = {}
        self._changed: dict[_RowKey, Table] = {}

    def restored(self, record: Incoming) -> None:
        """Takes in a row as it is in the log, or that it was deleted."""
        table = TABLE_BY_TOPIC[record.topic]
        if record.value is None:
            self._rows.pop(_row_key(table, record.key or b""), None)
        else:
            row = decode_row(table, record.value)
            self._rows[table.name, row.key] = row

    def record_of(self, topic: str, key: bytes) -> Outgoing:
        """The record that says what a row is, or that there is none."""
        table = TABLE_BY_TOPIC[topic]
        row = self._rows.get(_row_key(table, key))
        value = None if row is None else encode_row(table, row)
        return Outgoing(topic, self._partition, key, value, self._headers)

    def get(self, table: Table, key: tuple[str, ...]) -> Row | None:
        """A row, None when there is none."""
        return self._rows.get((table.name, key))

    def merge(self, update: RowUpdate) -> None:
        """Merges an update into its row."""
        key = (update.table.name, update.key)
        held = self._rows.get(key)
        row = merge(held, update)
        if row is not held:
            self._rows[key] = row
            self._changed[key] = update.table

    def changed(self) -> list[Outgoing]:
        """The rows that changed since the last call: each once, however often it was set."""
        out = []
        for key, table in self._changed.items():
            row = self._rows[key]
            name, value = table.row_key(row.key), encode_row(table, row)
            out.append(Outgoing(table.topic, self._partition, name, value, self._headers))
        self._changed.clear()
        return out


class Waits:
    """The deliveries that wait for the user of their subject, and since when."""

    def __init__(self, partition: int, headers: Headers) -> None:
        self._partition = partition
        self._headers = headers
        self._waiting: dict[Wanted, dict[str, WebhookAdmitted]] = {}
        #: When each began; those that have ended since are passed over.
        self._begun: list[tuple[int, Wanted, str]] = []

    def restored(self, record: Incoming) -> None:
        """Takes in a wait, or the end of one."""
        wanted, event_id = _wait_key(record.key or b"")
        if record.value is None:
            self._waiting.get(wanted, {}).pop(event_id, None)
        else:
            self.put(wanted, decode(record.value, WebhookAdmitted))

    def get(self, wanted: Wanted, event_id: str) -> WebhookAdmitted | None:
        """A delivery that waits."""
        return self._waiting.get(wanted, {}).get(event_id)

    def put(self, wanted: Wanted, event: WebhookAdmitted) -> None:
        """Lets a delivery wait, from the moment that it says."""
        self._waiting.setdefault(wanted, {})[event.event_id] = event
        heappush(self._begun, (event.parked_at_ms, wanted, event.event_id))

    def take(self, wanted: Wanted) -> list[WebhookAdmitted]:
        """Ends all waits for a row; returns who waited."""
        return list(self._waiting.pop(wanted, {}).values())

    def take_begun_before(self, at_ms: int) -> list[tuple[Wanted, WebhookAdmitted]]:
        """Ends the waits that began at a moment or before it; returns who waited, and for what."""
        found = []
        while self._begun and self._begun[0][0] <= at_ms:
            begun_ms, wanted, event_id = heappop(self._begun)
            waiting = self._waiting.get(wanted, {})
            event = waiting.get(event_id)
            if event is not None and event.parked_at_ms == begun_ms:
                del waiting[event_id]
                found.append((wanted, event))
            if not waiting:
                self._waiting.pop(wanted, None)
        return found

    def record(self, wanted: Wanted, event_id: str, value: bytes | None) -> Outgoing:
        """The record of a wait in the topic `waiting`, or of its end."""
        key = msgspec.json.encode((*wanted, event_id))
        return Outgoing(WAITING, self._partition, key, value, self._headers)

    def record_of(self, topic: str, key: bytes) -> Outgoing:
        """The record that says whether somebody waits."""
        event = self.get(*_wait_key(key))
        value = None if event is None else encode(event)
        return Outgoing(topic, self._partition, key, value, self._headers)


def _row_key(table: Table, key: bytes) -> _RowKey:
    return table.name, msgspec.json.decode(key, type=tuple[str, ...])


def _wait_key(key: bytes) -> tuple[Wanted, str]:
    table, subject, event_id = msgspec.json.decode(key, type=tuple[str, str, str])
    return Wanted(table, subject), event_id
