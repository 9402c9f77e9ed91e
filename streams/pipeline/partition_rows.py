"""Rows of a partition: those that a commit unit changed, and those that depend on them."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from headwater.processors.columns import RowDeleted, RowUpdate, Update, adopt, merge
from headwater.processors.nights import day_of_session, settle, summary_ids
from headwater.processors.row_parts import room_problem
from headwater.processors.uploads import settle_failures
from headwater.processors.wipes import digest, remaining_row, user_in
from headwater.schemas.codec import decode_row, encode_row
from headwater.schemas.epochs import HIDDEN, WIPED
from headwater.schemas.errors import RowTooLarge
from headwater.schemas.installed_tables import ALL_TABLES, TABLE_BY_TOPIC
from headwater.schemas.tables import (
    DAILY_SUMMARY,
    LAB_UPLOADS,
    SLEEP_SESSIONS,
    USERS,
    Owner,
    Row,
    Table,
    begins_with_user,
)
from headwater.streams.kafka.records import Headers, Incoming, Outgoing
from headwater.streams.kafka.state_store import Family, Staged

ROWS: Final = Family("r")
#: The name of the row with some unique columns, by table and columns; and days of sleeps, by id.
INDEX: Final = Family("i")
#: Parts of a day in its record: beginning, end and Terra's id of a sleep.
_PART: Final = re.compile(rb'"\d+/\d+/((?:[^"\\]|\\.)+)"')
#: Rows that are kept decoded; decoding one costs about 20 µs.
_ROWS_KEPT: Final = 4_000

_RowKey: TypeAlias = tuple[str, bytes]


class Forgotten(NamedTuple):
    """Rows of a user that were removed: their number by table, and the user's subjects."""

    counts: dict[str, int]
    subjects: list[str]


class Rows:
    """The rows of a partition, and which of them a commit unit changed."""

    def __init__(self, partition: int, headers: Headers, staged: Staged) -> None:
        self._partition = partition
        self._headers = headers
        self._staged = staged
        #: Recently used rows, in the order of their use.
        self._kept: dict[_RowKey, Row | None] = {}
        self._changed: dict[_RowKey, tuple[Table, Row | None]] = {}
        #: Changed rows that a wipe has removed.
        self._wiped: set[_RowKey] = set()
        #: Headers of the latest delivery that came with a trace, of changed rows.
        self._traces: dict[_RowKey, Sequence[tuple[str, bytes]]] = {}

    def restore_record(self, record: Incoming) -> None:
        """Apply a row of the log, or its tombstone."""
        table, key = TABLE_BY_TOPIC[record.topic], record.key or b""
        self._kept.pop((table.name, key), None)
        if table is DAILY_SUMMARY:
            self._restore_sleeps(key, record.value)
        self._staged.put(ROWS, stored_key(table, key), record.value)
        unique = _unique_key(table, _decode_key(key)) if table.unique else None
        if unique is not None and record.value is not None and HIDDEN not in record.headers:
            self._staged.put(INDEX, unique, key)
        elif unique is not None:
            self._forget_index(unique, key)

    def get(self, table: Table, key: tuple[str, ...]) -> Row | None:
        """Return a row; None if there is none, or only its owner knows it."""
        row = self._row(table, table.row_key(key))
        return None if row is None or row.is_hidden else row

    def of_user(self, table: Table, user: str) -> list[Row]:
        """Return the rows of a table whose column names a user; it reads all rows of the table."""
        for (_, name), (changed_table, changed) in self._changed.items():
            if changed_table is table:
                self._stage(table, name, changed)
        scanned = self._staged.scan(ROWS, stored_key(table, b""))
        rows = [decode_row(table, value) for _, value in scanned if user.encode() in value]
        return [row for row in rows if user_in(table, row) == user]

    def merge_delivery(
        self, updates: Iterable[Update], trace: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        """Merge the updates of a delivery, and change the rows that depend on theirs.

        Days are settled when they have all of the delivery: of versions in it, none is later.

        Args:
            updates: The updates.
            trace: Headers of its trace, for the records of the rows.

        Raises:
            RowTooLarge: A row has no room for it; nothing was changed.
        """
        updates = tuple(updates)
        self.check_room(updates)
        depended_on: list[Update] = []
        for update in updates:
            self.merge(update)
            if trace:
                self._traces[update.table.name, update.table.row_key(update.key)] = trace
            if update.table is LAB_UPLOADS or (type(update) is RowUpdate and update.parts):
                depended_on.append(update)
        # Even if a row did not change: it may be durable, and what depends on it may be not.
        for update in depended_on:
            if update.table is DAILY_SUMMARY:
                self._settle(update.key)
            elif update.table in (USERS, LAB_UPLOADS):
                self._settle_uploads(update.table, update.key)

    def check_room(self, updates: Iterable[Update]) -> None:
        """Check that rows have room for the updates of a delivery.

        Raises:
            RowTooLarge: A row has none.
        """
        for update in updates:
            if type(update) is RowUpdate and update.parts:
                row = self._stored(update.table, update.key)
                state = None if row is None else row.state
                problem = state and room_problem(state.parts, update.stamp)
                if problem:
                    raise RowTooLarge(f"{update.table.name} {'/'.join(update.key)}: {problem}")

    def merge(self, update: Update) -> None:
        """Merge an update into its row, and delete an older row with the same unique columns."""
        table = update.table
        name = table.row_key(update.key)
        before = self._row(table, name)
        row = merge(before, update)
        if row is not before:
            self._kept[table.name, name] = row
            self._changed[table.name, name] = (table, row)
            if table is DAILY_SUMMARY and type(update) is RowUpdate and update.parts:
                self._index_sleeps(row.key, summary_ids(update.parts))
        if table.unique:
            self._replace_other(table, name, row)

    def adopt(self, table: Table, key: bytes, rebuilt: Row | None, ends: Sequence[int]) -> None:
        """Replace a row by a rebuilt one."""
        row = adopt(table, self._row(table, key), rebuilt, ends)
        self._put(table, key, row)
        self._index(table, row)
        if row is not None:
            self._follow(table, key, row)

    def _put(self, table: Table, name: bytes, row: Row | None) -> None:
        self._kept[table.name, name] = row
        self._changed[table.name, name] = (table, row)
        if table.unique and (row is None or row.is_hidden):
            unique = _unique_key(table, _decode_key(name))
            if unique is not None:
                self._forget_index(unique, name)

    # -- rows that depend on others

    def _follow(self, table: Table, name: bytes, row: Row) -> None:
        """Change the rows that depend on a row that was rebuilt, or is what a wipe left."""
        if table.unique:
            self._replace_other(table, name, row)
        if table in (USERS, LAB_UPLOADS):
            self._settle_uploads(table, row.key)
        day = day_of_session(row) if table is SLEEP_SESSIONS else row.key
        if table in (DAILY_SUMMARY, SLEEP_SESSIONS) and day is not None:
            self._settle(day)

    def _settle(self, day: tuple[str, ...]) -> None:
        for table, row in settle(day, self._stored, self._days_of):
            self._put(table, table.row_key(row.key), row)

    def _days_of(self, sleep: tuple[str, str, str]) -> list[str]:
        """Return the days of sleeps with an id; perhaps some that have none any more."""
        days = self._staged.get(INDEX, _sleep_key(sleep))
        return [] if days is None else days.decode().split()

    def _restore_sleeps(self, key: bytes, value: bytes | None) -> None:
        """Index the sleeps of a day of the log; a removed day must not leave the user's name."""
        if value is not None:
            parts = _PART.findall(value)
            if parts:
                self._index_sleeps(_decode_key(key), map(_text_of, parts))
            return
        user, source, day = _decode_key(key)
        removed = self._staged.get(ROWS, stored_key(DAILY_SUMMARY, key)) or b""
        for summary_id in map(_text_of, _PART.findall(removed)):
            sleep = (user, source, summary_id)
            days = [one for one in self._days_of(sleep) if one != day]
            self._staged.put(INDEX, _sleep_key(sleep), " ".join(days).encode() or None)

    def _index(self, table: Table, row: Row | None) -> None:
        if table is DAILY_SUMMARY and row is not None and row.state is not None:
            self._index_sleeps(row.key, summary_ids(row.state.parts))

    def _index_sleeps(self, day: tuple[str, ...], ids: Iterable[str]) -> None:
        for summary_id in ids:
            sleep = (day[0], day[1], summary_id)
            days = self._days_of(sleep)
            if day[2] not in days:
                self._staged.put(INDEX, _sleep_key(sleep), " ".join([*days, day[2]]).encode())

    def _settle_uploads(self, table: Table, key: tuple[str, ...]) -> None:
        """Change the uploads of a user to which failed reports apply that name only the user."""
        row = self._stored(table, key)
        user = None if row is None else user_in(table, row)
        reported = None if user is None else self._stored(USERS, (user,))
        if user is None or reported is None or reported.state is None:
            return
        uploads = self.of_user(LAB_UPLOADS, user)
        for upload in settle_failures(reported.state.parts, uploads):
            self._put(LAB_UPLOADS, LAB_UPLOADS.row_key(upload.key), upload)

    def _stored(self, table: Table, key: tuple[str, ...]) -> Row | None:
        return self._row(table, table.row_key(key))

    def _replace_other(self, table: Table, name: bytes, row: Row) -> None:
        """Delete a row, or another one with the same unique columns, whichever is the older one."""
        unique = _unique_key(table, row.key)
        stamp = next(filter(None, row.stamps), None)
        if unique is None or stamp is None:
            return
        other_name = self._staged.get(INDEX, unique)
        other = None if other_name in (None, name) else self._row(table, other_name or b"")
        current = None if other is None else next(filter(None, other.stamps), None)
        if other is None or other_name is None or current is None:
            self._staged.put(INDEX, unique, name)
        elif (stamp.order, name) > (current.order, other_name):
            self._put(table, other_name, merge(other, RowDeleted(table, other.key, current)))
            self._staged.put(INDEX, unique, name)
            # It must not be durable before the deletion, which nothing would repeat.
            self._changed.pop((table.name, name), None)
            self._put(table, name, row)
        else:
            self._put(table, name, merge(row, RowDeleted(table, row.key, stamp)))

    def _forget_index(self, unique: bytes, name: bytes) -> None:
        if self._staged.get(INDEX, unique) == name:
            self._staged.put(INDEX, unique, None)

    # -- wipes

    def forget(self, user: str, fence: Sequence[int], digests: Collection[str] = ()) -> Forgotten:
        """Remove from the rows of a user what deliveries before a fence have set.

        Args:
            user: The user.
            fence: One offset per partition.
            digests: Those of subjects whose rows are the user's if they name no other user: an
                earlier fence may have removed the user and left the rest.
        """
        for (_, name), (table, changed) in self._changed.items():
            self._stage(table, name, changed)
        counts: dict[str, int] = {}
        subjects: list[str] = []
        remaining_rows: list[tuple[Table, bytes, Row]] = []
        left: list[tuple[Table, Row | None]] = []
        for table, name, row in list(self._of_user(user, digests)):
            if table.owner is Owner.SUBJECT:
                subjects.append(row.key[0])
            remaining = remaining_row(table, row, fence)
            left.append((table, remaining))
            if remaining != row:
                self._stage(table, name, remaining)
                self._put(table, name, remaining)
                if remaining is None:
                    self._wiped.add((table.name, name))
                else:
                    remaining_rows.append((table, name, remaining))
                if not row.is_hidden:
                    counts[table.name] = counts.get(table.name, 0) + 1
        for key, _ in list(self._staged.scan(INDEX, _sleep_key((user,))[:-1])):
            self._staged.put(INDEX, key, None)
        for table, remaining in left:
            self._index(table, remaining)
        for table, name, remaining in remaining_rows:
            self._follow(table, name, remaining)
        return Forgotten(counts, subjects)

    def _of_user(self, user: str, digests: Collection[str]) -> Iterator[tuple[Table, bytes, Row]]:
        """Yield the rows of a user, by their keys or by the user in rows of subjects."""
        for table in ALL_TABLES:
            by_key = begins_with_user(table)
            if not by_key and "user_id" not in table.index:
                continue
            # Common prefix of the user's keys: a JSON array without its end.
            prefix = table.row_key((user,))[:-1] if by_key else b""
            has_digests = table.owner is Owner.SUBJECT and bool(digests)
            for stored, value in self._staged.scan(ROWS, stored_key(table, prefix)):
                name = stored.partition(b"\0")[2]
                is_theirs = has_digests and digest(_decode_key(name)[0]) in digests
                # Most rows are of others; decoding all of them would stop the partition.
                if not (by_key or is_theirs or user.encode() in value):
                    continue
                row = decode_row(table, value)
                named = user_in(table, row)
                if named == user or (named is None and is_theirs):
                    yield table, name, row

    def changed(self) -> list[Outgoing]:
        """Return the rows that changed since the last call, each of them once."""
        out = []
        for (_, name), (table, row) in self._changed.items():
            value = self._stage(table, name, row)
            headers = self._headers
            if value is None and (table.name, name) in self._wiped:
                headers = [*headers, WIPED]
            elif row is not None and row.state is not None and row.is_hidden:
                headers = [*headers, HIDDEN]
            if self._traces:
                headers = [*headers, *self._traces.get((table.name, name), ())]
            out.append(Outgoing(table.topic, self._partition, name, value, headers))
        self._changed.clear()
        self._wiped.clear()
        self._traces.clear()
        while len(self._kept) > _ROWS_KEPT:
            del self._kept[next(iter(self._kept))]
        return out

    def of_table(self, table: Table) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a table in the store as (key, value), in the order of their keys."""
        store, prefix = self._staged.store, stored_key(table, b"")
        after: bytes | None = None
        while page := store.scan(ROWS, prefix, after=after):
            for stored, value in page:
                yield stored[len(prefix) :], value
            after = page[-1][0]

    def stored(self, table: Table, key: bytes) -> bytes | None:
        """Return a row in the store."""
        return self._staged.store.get(ROWS, stored_key(table, key))

    def _stage(self, table: Table, name: bytes, row: Row | None) -> bytes | None:
        value = None if row is None else encode_row(table, row)
        self._staged.put(ROWS, stored_key(table, name), value)
        return value

    def _row(self, table: Table, name: bytes) -> Row | None:
        key = (table.name, name)
        if key in self._kept:
            row = self._kept.pop(key)
        else:
            value = self._staged.get(ROWS, stored_key(table, name))
            row = None if value is None else decode_row(table, value)
        self._kept[key] = row
        return row


_decode_key: Final = msgspec.json.Decoder(tuple[str, ...]).decode


def _text_of(escaped: bytes) -> str:
    """Return a text as it is in JSON."""
    return str(msgspec.json.decode(b'"%b"' % escaped))


def _sleep_key(sleep: tuple[str, ...]) -> bytes:
    """Return the key in the index of sleeps with an id, by user, source and that id."""
    return stored_key(DAILY_SUMMARY, msgspec.json.encode(sleep))


def _unique_key(table: Table, key: tuple[str, ...]) -> bytes | None:
    """Return the key in the index of a row; None if one of its unique columns is empty."""
    unique = [key[position] for position in table.unique]
    return stored_key(table, msgspec.json.encode(unique)) if all(unique) else None


def stored_key(table: Table, key: bytes) -> bytes:
    """Return the key of a row in the store."""
    return b"%b\0%b" % (table.name.encode(), key)
