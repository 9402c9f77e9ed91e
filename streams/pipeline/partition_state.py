"""State of a partition: rows, parked deliveries, and claims of event ids.

All of it is restored from compacted topics, record by record, of one partition number: the rows of
its users and of its subjects, whichever topic brought the delivery that changes them. It is stored
on disk, with the bytes of the topics; rows that were used recently are cached.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from headwater.processors.providers.provider import Lookup
from headwater.processors.runs.claims import UNCLAIMED
from headwater.processors.wipes import Fences, accepting, digest, is_before
from headwater.schemas.codec import decode, decode_row, encode
from headwater.schemas.epochs import HIDDEN
from headwater.schemas.errors import UndecodableRecord, UnknownSchema
from headwater.schemas.installed_tables import ALL_TABLES, TABLE_BY_TOPIC
from headwater.schemas.records import (
    NameAccepted,
    UserForgotten,
    WebhookAdmitted,
    WebhooksClaimed,
)
from headwater.schemas.topics import ADMISSIONS, TOPICS, WAITING, WIPES
from headwater.streams.kafka.records import Headers, Incoming, Outgoing, position_of
from headwater.streams.kafka.state_store import Family, Staged, StateStore
from headwater.streams.pipeline.partition_rows import INDEX, ROWS, Rows, stored_key

log = logging.getLogger(__name__)

#: Version of the keys and values in the store.
FORM: Final = "2"

_HORIZON_MS: Final = next(t.retention_ms for t in TOPICS if t.name == ADMISSIONS) or 0
#: Claims of this period share a family, and are dropped together. A lookup reads every family, so
#: there should be few.
_BUCKET_MS: Final = _HORIZON_MS // 2
_BUCKET: Final = "c"
_WAITS: Final = Family("w")
#: Start of each wait, and its key.
_BEGUN: Final = Family("b")
_MARK: Final = Family("m")
#: Wipes, by the digest of their user.
_WIPED: Final = Family("x")
_TIME_BYTES: Final = 8
#: Offset, and Unix milliseconds.
_CLAIM: Final = Struct(">Qq")
_pack_claim: Final = _CLAIM.pack
_unpack_claim: Final = _CLAIM.unpack


class PartitionCheckpoint(msgspec.Struct, frozen=True):
    """Position of topics in a store.

    Attributes:
        positions: Next offset by topic.
        epochs: Epoch of the newest writer before it, by topic.
        unseen: See `Fold.unseen`.
    """

    positions: dict[str, int] = {}
    epochs: dict[str, int] = {}
    unseen: tuple[int, int] = (0, UNCLAIMED)


_decode_checkpoint: Final = msgspec.msgpack.Decoder(PartitionCheckpoint).decode


class LookupKey(NamedTuple):
    """The row that a delivery waits for: that of a subject in the table of a lookup."""

    table: str
    subject: str


class PartitionState:
    """State of one partition. All methods may raise StoreCorrupted."""

    def __init__(self, partition: int, store: StateStore) -> None:
        self.partition = partition
        #: Headers of records that carry their writer's epoch; set once there is an epoch.
        self.headers: Headers = []
        self._staged = Staged(store)
        self.claims = Claims(partition, self._staged)
        self.rows = Rows(partition, self.headers, self._staged)
        self.waits = Waits(partition, self.headers, self._staged)
        self.wipes = Wipes(partition, self.headers, self._staged)
        #: By topic; all other topics have rows.
        self._by_topic: Mapping[str, Claims | Waits | Wipes] = {
            ADMISSIONS: self.claims,
            WAITING: self.waits,
            WIPES: self.wipes,
        }

    def restore_record(self, record: Incoming) -> None:
        """Apply a record of the log; skip one that cannot be decoded."""
        try:
            self._by_topic.get(record.topic, self.rows).restore_record(record)
        except (UndecodableRecord, UnknownSchema, ValueError, msgspec.MsgspecError) as error:
            log.warning("%s is skipped: %s", position_of(record), error)

    def current(self, topic: str, keys: Iterable[bytes]) -> list[Outgoing]:
        """Return records with the current values of keys of a topic of rows, waits or wipes."""
        family = {WAITING: _WAITS, WIPES: _WIPED}.get(topic, ROWS)
        get, headers, out = self._staged.get, self.headers, []
        for key in keys:
            stored = stored_key(TABLE_BY_TOPIC[topic], key) if family is ROWS else key
            value = get(family, stored)
            is_hidden = family is ROWS and value is not None and _is_hidden(topic, value)
            more = [*headers, HIDDEN] if is_hidden else headers
            out.append(Outgoing(topic, self.partition, key, value, more))
        return out

    def user_of(self, lookup: Lookup, subject: str) -> str | None:
        """Return the user of a subject; None while it is unknown."""
        return lookup.user_in(self.rows.get(lookup.table, (subject,)))

    # -- the store

    def checkpoint(self) -> PartitionCheckpoint:
        """Return the position of topics in the store."""
        data = self._staged.get(_MARK, b"")
        return PartitionCheckpoint() if data is None else _decode_checkpoint(data)

    def write(self, checkpoint: PartitionCheckpoint) -> None:
        """Write staged changes to the store; the topics have all of them up to the checkpoint."""
        self._staged.put(_MARK, b"", msgspec.msgpack.encode(checkpoint))
        self._staged.write(checkpoint.positions)

    def clear(self) -> None:
        """Clear the store."""
        self._staged.store.clear()

    def purge(self, names: Iterable[str]) -> None:
        """Remove deleted values from the store's files, as they contain names of wiped users."""
        store = self._staged.store
        prefixes = [
            stored_key(table, table.row_key((name,))[:-1]) for name in names for table in ALL_TABLES
        ]
        for family in (ROWS, INDEX):
            store.purge(family, prefixes)
        for family in (_WAITS, _BEGUN, _WIPED):
            store.purge(family)

    def purge_wiped(self) -> None:
        """Remove names and bytes of wiped users, if no search for their records is needed."""
        pending = self.wipes.pending()
        for wipe in pending:
            self.wipes.put(msgspec.structs.replace(wipe, names=[]))
        self.write(self.checkpoint())
        for wipe in pending:
            self.purge(wipe.names)

    def close(self) -> None:
        """Close the store, so that others can open it."""
        self._staged.store.close()


class Claim(NamedTuple):
    """The first offset of an event id, and when that delivery was sent, in Unix milliseconds."""

    offset: int
    sent_at_ms: int


class Claims:
    """First deliveries of the event ids of a partition, for as long as senders retry."""

    def __init__(self, partition: int, staged: Staged) -> None:
        self._partition = partition
        self._staged = staged
        self._buckets = {family for family in staged.store.families() if family.startswith(_BUCKET)}
        #: Stored claims of the event ids in the current batch.
        self._known: dict[str, Claim] = {}
        #: Claims since the last call of `changed`.
        self._fresh: dict[str, Claim] = {}

    def restore_record(self, record: Incoming) -> None:
        """Apply the claims of a batch.

        It does not look up an id before it puts it, which would take longer than all else. That is
        safe because two claims of one id in memory name the same offset: no owner claims an id that
        it knows, and one that did not know it had read the partition from an earlier offset.
        """
        if record.value is None:
            return
        self._put(decode(record.value, WebhooksClaimed))

    def load(self, event_ids: Iterable[bytes]) -> None:
        """Look up the event ids of a batch together, which is cheaper than one by one."""
        self._known.clear()
        self.load_more(event_ids)

    def load_more(self, event_ids: Iterable[bytes]) -> None:
        """Look up further event ids of the batch."""
        keys = list(event_ids)
        for bucket in self._buckets:
            values = self._staged.store.multi_get(bucket, keys)
            for key, value in zip(keys, values, strict=True):
                if value is not None:
                    claim, event_id = Claim(*_unpack_claim(value)), key.decode()
                    self._known[event_id] = min(claim, self._known.get(event_id, claim))

    def known(self, event_id: str) -> Claim | None:
        """Return the claim of a loaded event id; None if it was not claimed."""
        known = self._known.get(event_id)
        return self._fresh.get(event_id) if known is None else known

    def claim(self, event_ids: Iterable[str], claim: Claim) -> None:
        """Claim those loaded event ids that have no claim."""
        for event_id in event_ids:
            if event_id not in self._known:
                self._fresh.setdefault(event_id, claim)

    def changed(self, now_ms: int) -> list[Outgoing]:
        """Return the claims since the last call as one record."""
        if not self._fresh:
            return []
        offsets, sent_at_ms = map(list, zip(*self._fresh.values(), strict=True))
        claimed = WebhooksClaimed(list(self._fresh), offsets, sent_at_ms, now_ms)
        self._put(claimed)
        self._fresh.clear()
        return [Outgoing(ADMISSIONS, self._partition, None, encode(claimed))]

    def expire(self, now_ms: int) -> None:
        """Drop claims that are older than any sender retries."""
        for bucket in list(self._buckets):
            if (int(bucket[1:]) + 1) * _BUCKET_MS <= now_ms - _HORIZON_MS:
                self._staged.store.drop(bucket)
                self._buckets.discard(bucket)

    def _put(self, claimed: WebhooksClaimed) -> None:
        bucket = Family(f"{_BUCKET}{claimed.admitted_at_ms // _BUCKET_MS}")
        self._buckets.add(bucket)
        values = map(_pack_claim, claimed.offsets, claimed.sent_at_ms)
        names = map(str.encode, claimed.event_ids)
        self._staged.put_all(bucket, dict(zip(names, values, strict=True)))


class Waits:
    """Parked deliveries, which wait for the user of their subject."""

    def __init__(self, partition: int, headers: Headers, staged: Staged) -> None:
        self._partition = partition
        self._headers = headers
        self._staged = staged

    def restore_record(self, record: Incoming) -> None:
        """Apply a wait of the log, or its end."""
        key = record.key or b""
        if record.value is None:
            self._end(key)
        else:
            self._begin(key, decode(record.value, WebhookAdmitted), record.value)

    def get(self, lookup_key: LookupKey, event_id: str) -> WebhookAdmitted | None:
        """Return a parked delivery."""
        return self._get(_wait_key(lookup_key, event_id))

    def put(self, lookup_key: LookupKey, event: WebhookAdmitted) -> None:
        """Park a delivery, from its `parked_at_ms` on."""
        self._begin(_wait_key(lookup_key, event.event_id), event, encode(event))

    def end(self, lookup_key: LookupKey, event_id: str) -> None:
        """End the wait of a delivery."""
        self._end(_wait_key(lookup_key, event_id))

    def take(self, lookup_key: LookupKey) -> list[WebhookAdmitted]:
        """End all waits for a row; return the deliveries."""
        # Common prefix of their keys: a JSON array without its end.
        prefix = msgspec.json.encode(lookup_key)[:-1] + b","
        # Sorted, so that the order does not depend on which of them are staged.
        waits = sorted(self._staged.scan(_WAITS, prefix))
        for key, _ in waits:
            self._end(key)
        return [decode(value, WebhookAdmitted) for _, value in waits]

    def forget(self, names: Collection[str], fence: Sequence[int]) -> list[Outgoing]:
        """End the waits of deliveries that name a user or subject and precede a fence."""
        ended = []
        for key, value in list(self._staged.scan(_WAITS)):
            event = decode(value, WebhookAdmitted)
            named = {event.user_id, event.reference, event.subject} & set(names)
            if named and is_before(fence, event.partition, event.offset):
                self._end(key)
                ended.append(Outgoing(WAITING, self._partition, key, None, self._headers))
        return ended

    def begun_before(self, at_ms: int) -> Iterator[tuple[LookupKey, WebhookAdmitted]]:
        """Yield the waits that began at or before a time, the oldest first.

        Waits may end while the iterator is used, and are read one by one, because all of them
        may not fit in memory.
        """
        begun = sorted(key for key, _ in self._staged.scan(_BEGUN, until=_number(at_ms + 1)))
        for key in (entry[_TIME_BYTES:] for entry in begun):
            event = self._get(key)
            if event is not None:
                table, subject, _ = msgspec.json.decode(key, type=tuple[str, str, str])
                yield LookupKey(table, subject), event

    def record(self, lookup_key: LookupKey, event_id: str, value: bytes | None) -> Outgoing:
        """Return the record of a wait in the topic `waiting`, or of its end."""
        key = _wait_key(lookup_key, event_id)
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
    """The wipes of a partition: their fences, and their pending searches."""

    def __init__(self, partition: int, headers: Headers, staged: Staged) -> None:
        self._partition = partition
        self._headers = headers
        self._staged = staged
        #: By digest of the user.
        self.known: dict[bytes, UserForgotten] = {}
        self.fences = Fences()
        for key, value in staged.scan(_WIPED):
            self._take(key, decode(value, UserForgotten))

    def restore_record(self, record: Incoming) -> None:
        """Apply a wipe of the log."""
        if record.value is not None:
            self._staged.put(_WIPED, record.key or b"", record.value)
            self._take(record.key or b"", decode(record.value, UserForgotten))

    def get(self, user: str) -> UserForgotten | None:
        """Return the last wipe of a user."""
        return self.known.get(digest(user).encode())

    def pending(self) -> list[UserForgotten]:
        """Return the wipes with a pending search."""
        return [wipe for wipe in self.known.values() if wipe.names]

    def put(self, wipe: UserForgotten) -> Outgoing:
        """Store a wipe, or its progress; return its record."""
        key, value = wipe.digests[0].encode(), encode(wipe)
        self._staged.put(_WIPED, key, value)
        self._take(key, wipe)
        return Outgoing(WIPES, self._partition, key, value, self._headers)

    def record_found(self, wipe: UserForgotten) -> list[Outgoing]:
        """Return the record of the counts of a wipe, or of the end of its search.

        It is empty if the wipe, or another one, was ordered meanwhile, which starts a new search.
        """
        pending = {other.wipe_id: other for other in self.pending()}
        if wipe.wipe_id not in pending or pending[wipe.wipe_id].fence != wipe.fence:
            return []
        # Names may have been accepted again since the search began.
        accepted = pending[wipe.wipe_id].accepted
        return [self.put(msgspec.structs.replace(wipe, accepted=accepted))]

    def accept(self, names: Iterable[NameAccepted]) -> list[Outgoing]:
        """Accept deliveries of wiped names again; return the records of their wipes."""
        wipes = [accepting(wipe, names) for wipe in self.known.values()]
        return [self.put(wipe) for wipe in wipes if wipe is not None]

    def accept_early(self, names: Sequence[NameAccepted]) -> list[Outgoing]:
        """Accept names that another partition accepts, perhaps before their wipe is read here.

        The first name is the user's.
        """
        if names[0].sha256.encode() in self.known:
            return self.accept(names)
        unread = UserForgotten(
            wipe_id="",
            digests=[name.sha256 for name in names],
            names=[],
            fence=[],
            found=[],
            counts=[],
            ordered_at_ms=0,
            accepted=tuple(names),
        )
        return [self.put(unread)]

    def _take(self, key: bytes, wipe: UserForgotten) -> None:
        self.known[key] = wipe
        self.fences.add(wipe)


def _is_hidden(topic: str, value: bytes) -> bool:
    return decode_row(TABLE_BY_TOPIC[topic], value).is_hidden


def _wait_key(lookup_key: LookupKey, event_id: str) -> bytes:
    return msgspec.json.encode((*lookup_key, event_id))


def _number(value: int) -> bytes:
    return value.to_bytes(_TIME_BYTES, "big")
