"""What the owner of a partition knows: rows, the deliveries that wait, and claims of event ids.

All of it comes from compacted topics, record by record, and all of one partition number: the rows
of its users and of its subjects, whichever topic brought the delivery that changes them. It lies in
a store on disk, as the bytes that the topics have, and those of its rows that were used lately are
at hand.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from headwater.processors.columns import RowUpdate, adopt, merge
from headwater.processors.providers.provider import Lookup
from headwater.processors.wipes import Fences, digest, is_before, row_left, user_in
from headwater.schemas.codec import decode, decode_row, encode, encode_row
from headwater.schemas.epochs import WIPED
from headwater.schemas.errors import UndecodableRecord, UnknownSchema
from headwater.schemas.installed_tables import ALL_TABLES, TABLE_BY_TOPIC
from headwater.schemas.records import UserForgotten, WebhookAdmitted, WebhooksClaimed
from headwater.schemas.tables import Owner, Row, Table, begins_with_user
from headwater.schemas.topics import ADMISSIONS, TOPICS, WAITING, WIPES
from headwater.streams.kafka.records import Headers, Incoming, Outgoing, position_of
from headwater.streams.kafka.state_store import Family
from headwater.streams.pipeline.staged import Mark, Staged, Store

log = logging.getLogger(__name__)

#: Version of what is kept under which key.
FORM: Final = "1"

_HORIZON_MS: Final = next(t.retention_ms for t in TOPICS if t.name == ADMISSIONS) or 0
#: Claims of as long lie together, and are dropped together: a delivery is looked for in each of
#: them, so few are good.
_BUCKET_MS: Final = _HORIZON_MS // 2
_BUCKET: Final = "c"
_ROWS: Final = Family("r")
_WAITS: Final = Family("w")
#: When each wait began, and its key.
_BEGUN: Final = Family("b")
_MARK: Final = Family("m")
#: Wipes, by the digest of their user.
_WIPED: Final = Family("x")
_TIME_BYTES: Final = 8
#: Rows that are kept decoded; one that is not costs some 20 µs more.
_ROWS_KEPT: Final = 4_000

_mark: Final = msgspec.msgpack.Decoder(Mark).decode


class Wanted(NamedTuple):
    """What a delivery waits for: the row of a subject in the table of a lookup."""

    table: str
    subject: str


_RowKey: TypeAlias = tuple[str, bytes]


class Forgotten(NamedTuple):
    """What was forgotten of a user's rows: how many of each table, and who their subjects were."""

    counts: dict[str, int]
    subjects: list[str]


class PartitionState:
    """What is known of one partition.

    Errors: StoreCorrupted, from everything.
    """

    def __init__(self, partition: int, store: Store) -> None:
        self.partition = partition
        #: What its records have that carry their writer's epoch; filled once there is one.
        self.headers: Headers = []
        self._staged = Staged(store)
        self.claims = Claims(partition, self._staged)
        self.rows = Rows(partition, self.headers, self._staged)
        self.waits = Waits(partition, self.headers, self._staged)
        self.wipes = Wipes(partition, self.headers, self._staged)
        #: By topic; all others are of rows.
        self._beside: Mapping[str, Claims | Waits | Wipes] = {
            ADMISSIONS: self.claims,
            WAITING: self.waits,
            WIPES: self.wipes,
        }

    def restored(self, record: Incoming) -> None:
        """Takes in a record of its memory; one that is not ours is passed over."""
        try:
            self._beside.get(record.topic, self.rows).restored(record)
        except (UndecodableRecord, UnknownSchema, ValueError, msgspec.MsgspecError) as error:
            log.warning("%s is skipped: %s", position_of(record), error)

    def again(self, topic: str, keys: Iterable[bytes]) -> list[Outgoing]:
        """The records that say what is known of keys of a topic: of rows, waits or wipes."""
        family = {WAITING: _WAITS, WIPES: _WIPED}.get(topic, _ROWS)
        get, headers, out = self._staged.get, self.headers, []
        for key in keys:
            place = _place(TABLE_BY_TOPIC[topic], key) if family is _ROWS else key
            out.append(Outgoing(topic, self.partition, key, get(family, place), headers))
        return out

    def user_of(self, lookup: Lookup, subject: str) -> str | None:
        """The user of a subject, None while nobody has said it."""
        return lookup.user_in(self.rows.get(lookup.table, (subject,)))

    # -- the store

    def mark(self) -> Mark:
        """How far the topics are in the store."""
        data = self._staged.get(_MARK, b"")
        return Mark() if data is None else _mark(data)

    def write(self, mark: Mark) -> None:
        """Writes what was changed to the store: all of it is in the topics, up to this mark."""
        self._staged.put(_MARK, b"", msgspec.msgpack.encode(mark))
        self._staged.write(mark.positions)

    def clear(self) -> None:
        """Empties the store."""
        self._staged.store.clear()

    def purge(self, names: Iterable[str]) -> None:
        """Has the store give up the bytes of what named somebody, and was deleted."""
        store = self._staged.store
        rows = (
            _place(table, table.row_key((name,))[:-1]) for name in names for table in ALL_TABLES
        )
        store.purge(_ROWS, rows)
        for family in (_WAITS, _BEGUN, _WIPED):
            store.purge(family)

    def give_up_wiped(self) -> None:
        """Gives up the names and bytes of those who were wiped, where nobody looks for records."""
        pending = self.wipes.pending()
        for wipe in pending:
            self.wipes.put(msgspec.structs.replace(wipe, names=[]))
        self.write(self.mark())
        for wipe in pending:
            self.purge(wipe.names)

    def close(self) -> None:
        """Lets others have the store."""
        self._staged.store.close()


class Claims:
    """The first offset of every event id of a partition, for as long as senders retry."""

    def __init__(self, partition: int, staged: Staged) -> None:
        self._partition = partition
        self._staged = staged
        self._buckets = {each for each in staged.store.families() if each.startswith(_BUCKET)}
        #: Of the batch at hand.
        self._known: dict[str, int] = {}
        self._fresh: dict[str, int] = {}

    def restored(self, record: Incoming) -> None:
        """Takes in the claims of a batch.

        An id is not looked for before it is put, which would take longer than all else: two claims
        of one id that are remembered at a time name the same offset. Nobody claims what they know;
        and who did not know of the other had read the partition from an offset before it.
        """
        if record.value is None:
            return
        self._put(decode(record.value, WebhooksClaimed))

    def load(self, event_ids: Iterable[bytes]) -> None:
        """Looks for the event ids of a batch, all at once, because that is cheaper."""
        keys = list(event_ids)
        self._known.clear()
        for bucket in self._buckets:
            found = self._staged.store.multi_get(bucket, keys)
            for key, value in zip(keys, found, strict=True):
                if value is not None:
                    offset, event_id = int.from_bytes(value, "big"), key.decode()
                    self._known[event_id] = min(offset, self._known.get(event_id, offset))

    def first(self, event_id: str, offset: int) -> int:
        """The first offset of an event id that was loaded; where none is known, this claims it."""
        known = self._known.get(event_id)
        if known is None:
            self._known[event_id] = self._fresh[event_id] = known = offset
        return known

    def changed(self, now_ms: int) -> list[Outgoing]:
        """The claims since the last call, as one record."""
        if not self._fresh:
            return []
        claimed = WebhooksClaimed(list(self._fresh), list(self._fresh.values()), now_ms)
        self._put(claimed)
        self._fresh.clear()
        return [Outgoing(ADMISSIONS, self._partition, None, encode(claimed))]

    def expire(self, now_ms: int) -> None:
        """Forgets claims that are older than any sender retries."""
        for bucket in list(self._buckets):
            if (int(bucket[1:]) + 1) * _BUCKET_MS <= now_ms - _HORIZON_MS:
                self._staged.store.drop(bucket)
                self._buckets.discard(bucket)

    def _put(self, claimed: WebhooksClaimed) -> None:
        bucket = Family(f"{_BUCKET}{claimed.admitted_at_ms // _BUCKET_MS}")
        self._buckets.add(bucket)
        pairs = zip(claimed.event_ids, claimed.offsets, strict=True)
        self._staged.put_all(bucket, {name.encode(): _number(offset) for name, offset in pairs})


class Rows:
    """The rows of a partition, and which of them a batch changed."""

    def __init__(self, partition: int, headers: Headers, staged: Staged) -> None:
        self._partition = partition
        self._headers = headers
        self._staged = staged
        #: The rows used last, in the order of their use.
        self._kept: dict[_RowKey, Row | None] = {}
        self._changed: dict[_RowKey, tuple[Table, Row | None]] = {}
        #: Of those, the rows that a wipe has removed.
        self._wiped: set[_RowKey] = set()

    def restored(self, record: Incoming) -> None:
        """Takes in a row as it is in the log, or that it was deleted."""
        table, key = TABLE_BY_TOPIC[record.topic], record.key or b""
        self._kept.pop((table.name, key), None)
        self._staged.put(_ROWS, _place(table, key), record.value)

    def get(self, table: Table, key: tuple[str, ...]) -> Row | None:
        """A row, None when there is none."""
        return self._row(table, table.row_key(key))

    def merge(self, update: RowUpdate) -> None:
        """Merges an update into its row."""
        table = update.table
        name = table.row_key(update.key)
        held = self._row(table, name)
        row = merge(held, update)
        if row is not held:
            key = (table.name, name)
            self._kept[key] = row
            self._changed[key] = (table, row)

    def adopt(self, table: Table, key: bytes, rebuilt: Row | None, ends: Sequence[int]) -> None:
        """Puts a row that was made again in the place of the one that is there."""
        row = adopt(table, self._row(table, key), rebuilt, ends)
        self._kept[table.name, key] = row
        self._changed[table.name, key] = (table, row)

    def forget(self, user: str, fence: Sequence[int]) -> Forgotten:
        """Takes from the rows of a user what deliveries before a fence have set."""
        for (_, name), (table, changed) in self._changed.items():
            self._stage(table, name, changed)
        counts: dict[str, int] = {}
        subjects: list[str] = []
        for table, name, row in list(self._of_user(user)):
            if table.owner is Owner.SUBJECT:
                subjects.append(row.key[0])
            left = row_left(row, fence)
            if left != row:
                self._stage(table, name, left)
                self._kept[table.name, name] = left
                self._changed[table.name, name] = (table, left)
                if left is None:
                    self._wiped.add((table.name, name))
                counts[table.name] = counts.get(table.name, 0) + 1
        return Forgotten(counts, subjects)

    def _of_user(self, user: str) -> Iterator[tuple[Table, bytes, Row]]:
        """The rows of a user: by their keys, and by what subjects' rows say."""
        for table in ALL_TABLES:
            by_key = begins_with_user(table)
            if not by_key and "user_id" not in table.index:
                continue
            # What all keys of a user begin with: a JSON array without its end.
            prefix = table.row_key((user,))[:-1] if by_key else b""
            for place, value in self._staged.scan(_ROWS, _place(table, prefix)):
                row = decode_row(table, value)
                if user_in(table, row) == user:
                    yield table, place.partition(b"\0")[2], row

    def changed(self) -> list[Outgoing]:
        """The rows that changed since the last call: each once, however often it was set."""
        out = []
        for (_, name), (table, row) in self._changed.items():
            value = self._stage(table, name, row)
            is_wiped = value is None and (table.name, name) in self._wiped
            headers = [*self._headers, WIPED] if is_wiped else self._headers
            out.append(Outgoing(table.topic, self._partition, name, value, headers))
        self._changed.clear()
        self._wiped.clear()
        while len(self._kept) > _ROWS_KEPT:
            del self._kept[next(iter(self._kept))]
        return out

    def of_table(self, table: Table) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a table in the store, as (key, value), in the order of their keys."""
        store, prefix = self._staged.store, _place(table, b"")
        after: bytes | None = None
        while found := store.scan(_ROWS, prefix, after=after):
            for place, value in found:
                yield place[len(prefix) :], value
            after = found[-1][0]

    def _stage(self, table: Table, name: bytes, row: Row | None) -> bytes | None:
        value = None if row is None else encode_row(table, row)
        self._staged.put(_ROWS, _place(table, name), value)
        return value

    def _row(self, table: Table, name: bytes) -> Row | None:
        key = (table.name, name)
        if key in self._kept:
            row = self._kept.pop(key)
        else:
            value = self._staged.get(_ROWS, _place(table, name))
            row = None if value is None else decode_row(table, value)
        self._kept[key] = row
        return row


class Waits:
    """The deliveries that wait for the user of their subject, and since when."""

    def __init__(self, partition: int, headers: Headers, staged: Staged) -> None:
        self._partition = partition
        self._headers = headers
        self._staged = staged

    def restored(self, record: Incoming) -> None:
        """Takes in a wait, or the end of one."""
        key = record.key or b""
        if record.value is None:
            self._end(key)
        else:
            self._begin(key, decode(record.value, WebhookAdmitted), record.value)

    def get(self, wanted: Wanted, event_id: str) -> WebhookAdmitted | None:
        """A delivery that waits."""
        return self._get(_wait_key(wanted, event_id))

    def put(self, wanted: Wanted, event: WebhookAdmitted) -> None:
        """Lets a delivery wait, from the moment that it says."""
        self._begin(_wait_key(wanted, event.event_id), event, encode(event))

    def end(self, wanted: Wanted, event_id: str) -> None:
        """Ends the wait of a delivery."""
        self._end(_wait_key(wanted, event_id))

    def take(self, wanted: Wanted) -> list[WebhookAdmitted]:
        """Ends all waits for a row; returns who waited."""
        # What all keys of the row begin with: a JSON array without its end.
        prefix = msgspec.json.encode(wanted)[:-1] + b","
        found = list(self._staged.scan(_WAITS, prefix))
        for key, _ in found:
            self._end(key)
        return [decode(value, WebhookAdmitted) for _, value in found]

    def forget(self, names: Collection[str], fence: Sequence[int]) -> list[Outgoing]:
        """Ends the waits of deliveries that name somebody and lie before a fence."""
        ended = []
        for key, value in list(self._staged.scan(_WAITS)):
            event = decode(value, WebhookAdmitted)
            named = {event.user_id, event.reference, event.subject} & set(names)
            if named and is_before(fence, event.partition, event.offset):
                self._end(key)
                ended.append(Outgoing(WAITING, self._partition, key, None, self._headers))
        return ended

    def begun_before(self, at_ms: int) -> Iterator[tuple[Wanted, WebhookAdmitted]]:
        """The waits that began at a moment or before it, the oldest first: for what, and who.

        They may be ended meanwhile, and are read one by one: all of them may be too much.
        """
        begun = sorted(key for key, _ in self._staged.scan(_BEGUN, until=_number(at_ms + 1)))
        for key in (each[_TIME_BYTES:] for each in begun):
            event = self._get(key)
            if event is not None:
                table, subject, _ = msgspec.json.decode(key, type=tuple[str, str, str])
                yield Wanted(table, subject), event

    def record(self, wanted: Wanted, event_id: str, value: bytes | None) -> Outgoing:
        """The record of a wait in the topic `waiting`, or of its end."""
        key = _wait_key(wanted, event_id)
        return Outgoing(WAITING, self._partition, key, value, self._headers)

    def _get(self, key: bytes) -> WebhookAdmitted | None:
        value = self._staged.get(_WAITS, key)
        return None if value is None else decode(value, WebhookAdmitted)

    def _begin(self, key: bytes, event: WebhookAdmitted, value: bytes) -> None:
        self._end(key)
        self._staged.put(_WAITS, key, value)
        self._staged.put(_BEGUN, _number(event.parked_at_ms) + key, b"")

    def _end(self, key: bytes) -> None:
        event = self._get(key)
        if event is not None:
            self._staged.put(_WAITS, key, None)
            self._staged.put(_BEGUN, _number(event.parked_at_ms) + key, None)


class Wipes:
    """The wipes of a partition: what does not count any more, and what is still looked for."""

    def __init__(self, partition: int, headers: Headers, staged: Staged) -> None:
        self._partition = partition
        self._headers = headers
        self._staged = staged
        #: By the digest of the user.
        self.known: dict[bytes, UserForgotten] = {}
        self.fences = Fences()
        for key, value in staged.scan(_WIPED):
            self._take(key, decode(value, UserForgotten))

    def restored(self, record: Incoming) -> None:
        """Takes in a wipe as it is in the log."""
        if record.value is not None:
            self._staged.put(_WIPED, record.key or b"", record.value)
            self._take(record.key or b"", decode(record.value, UserForgotten))

    def get(self, user: str) -> UserForgotten | None:
        """The last wipe of a user."""
        return self.known.get(digest(user).encode())

    def pending(self) -> list[UserForgotten]:
        """Those of which records are still looked for."""
        return [wipe for wipe in self.known.values() if wipe.names]

    def put(self, wipe: UserForgotten) -> Outgoing:
        """Takes note of a wipe, or of how far it is; returns the record that says so."""
        key, value = wipe.digests[0].encode(), encode(wipe)
        self._staged.put(_WIPED, key, value)
        self._take(key, wipe)
        return Outgoing(WIPES, self._partition, key, value, self._headers)

    def found(self, wipe: UserForgotten) -> list[Outgoing]:
        """The record that says what of a wipe was found, or that nothing more is looked for.

        Shape:  none if another one was ordered meanwhile, which is looked for anew.
        """
        pending = {each.wipe_id for each in self.pending()}
        return [self.put(wipe)] if wipe.wipe_id in pending else []

    def _take(self, key: bytes, wipe: UserForgotten) -> None:
        self.known[key] = wipe
        self.fences.add(wipe)


def _place(table: Table, key: bytes) -> bytes:
    return b"%b\0%b" % (table.name.encode(), key)


def _wait_key(wanted: Wanted, event_id: str) -> bytes:
    return msgspec.json.encode((*wanted, event_id))


def _number(value: int) -> bytes:
    return value.to_bytes(_TIME_BYTES, "big")
