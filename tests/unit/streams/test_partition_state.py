"""The state of a partition on a real store: what is durable comes back, and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.processors.columns import RowUpdate
from headwater.processors.sleeps import Sleep
from headwater.schemas.records import Stamp, WebhookAdmitted
from headwater.schemas.tables import CONNECTIONS, DAILY_SUMMARY
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.kafka.state_store import Family, StoreIdentity
from headwater.streams.kafka.state_stores import StateStores
from headwater.streams.pipeline.partition_rows import INDEX, ROWS
from headwater.streams.pipeline.partition_state import (
    FORM,
    Claim,
    LookupKey,
    PartitionCheckpoint,
    PartitionState,
)
from tests.fakes.memory_store import MemoryStore

NOW = 1_783_000_000_000
DAY = 86_400_000
WANTED = LookupKey("terra_connections", "t1")
MARK = PartitionCheckpoint({"connections": 7}, {"connections": 5}, (3, 5))


class Disk:
    """A disk, and the state of a partition on it, which is left and opened again."""

    def __init__(self, folder: Path) -> None:
        self._stores = StateStores(folder, 16 << 20, lambda: NOW)
        self.state = self._opened()

    def _opened(self) -> PartitionState:
        identity = StoreIdentity(cluster="c", group="g", topics=("t",), partition=0, form=FORM)
        return PartitionState(0, self._stores.open(identity))

    def again(self) -> PartitionState:
        self.state.close()
        self.state = self._opened()
        return self.state


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path)
    yield disk
    disk.state.close()


def update(user: str, at_ms: int = NOW) -> RowUpdate:
    return RowUpdate(CONNECTIONS, ("t1",), {"user_id": user}, Stamp(0, at_ms, 0, "e", 0, 0))


def waiting(event_id: str, parked_at_ms: int = NOW) -> WebhookAdmitted:
    return WebhookAdmitted(
        event_id=event_id,
        request_id="r",
        source="terra",
        type="daily",
        subject="t1",
        sent_at_ms=NOW,
        updated_at_ms=0,
        received_at_ms=NOW,
        body=b"{}",
        partition=0,
        offset=0,
        admitted_at_ms=NOW,
        parked_at_ms=parked_at_ms,
    )


def read_back(record: Outgoing) -> Incoming:
    key, value = record.key, record.value
    return Incoming(record.topic, 0, 0, 0, 0, key, value, None, 0, 0, ())


def users(state: PartitionState) -> object:
    row = state.rows.get(CONNECTIONS, ("t1",))
    return row and row.values[CONNECTIONS.index["user_id"]]


def test_what_was_written_comes_back_and_what_was_not_does_not(disk: Disk):
    disk.state.rows.merge(update("user_1"))
    disk.state.rows.changed()
    disk.state.waits.put(WANTED, waiting("e1"))
    disk.state.claims.load([b"e1"])
    disk.state.claims.claim(["e1"], Claim(4, NOW))
    disk.state.claims.changed(NOW)
    disk.state.write(MARK)
    disk.state.rows.merge(update("user_2", NOW + 1))
    disk.state.rows.changed()
    disk.state.waits.put(WANTED, waiting("e2"))
    assert users(disk.state) == "user_2"

    again = disk.again()
    assert again.checkpoint() == MARK
    assert users(again) == "user_1"
    assert again.waits.get(WANTED, "e2") is None
    again.claims.load([b"e1", b"e2"])
    assert (again.claims.known("e1"), again.claims.known("e2")) == (Claim(4, NOW), None)
    assert [event.event_id for event in again.waits.take(WANTED)] == ["e1"]


def test_of_many_rows_those_used_last_are_at_hand_and_the_others_in_the_store_alone():
    read: list[bytes] = []

    class Watched(MemoryStore):
        def get(self, family: Family, key: bytes) -> bytes | None:
            read.append(key)
            return super().get(family, key)

    state = PartitionState(0, Watched())
    stamp = Stamp(0, NOW, 0, "e", 0, 0)
    for number in range(20_000):
        state.rows.merge(RowUpdate(CONNECTIONS, (f"t{number}",), {"user_id": "user_1"}, stamp))
        if number % 1_000 == 999:
            state.rows.changed()
            state.write(MARK)
    for number, is_read in ((19_999, False), (0, True), (10_000, True)):
        read.clear()
        assert state.rows.get(CONNECTIONS, (f"t{number}",)) is not None
        assert bool(read) is is_read, number


def test_a_tombstone_deletes_a_row(disk: Disk):
    disk.state.rows.merge(update("user_1"))
    (record,) = disk.state.rows.changed()
    disk.state.write(PartitionCheckpoint())
    disk.state.restore_record(read_back(record._replace(value=None)))
    assert users(disk.state) is None
    (again,) = disk.state.current(record.topic, [record.key or b""])
    assert again.value is None
    disk.state.restore_record(read_back(record))
    assert users(disk.state) == "user_1"


def test_days_of_sleeps_are_restored_from_rows_and_a_removed_day_leaves_no_name():
    part = Sleep(1, 2, 'n "1"').part
    night = {part: {"sleep_minutes": 1.0}}
    key = ("user_1", "garmin", "2026-07-01")
    state = PartitionState(0, MemoryStore())
    state.rows.merge(RowUpdate(DAILY_SUMMARY, key, {}, Stamp(0, NOW, 0, "e", 0, 0), night))
    (record,) = state.rows.changed()
    store = MemoryStore()
    again = PartitionState(0, store)
    again.restore_record(read_back(record))
    again.write(MARK)
    assert [value for _, value in store.scan(INDEX)] == [b"2026-07-01"]
    again.restore_record(read_back(record._replace(value=None)))
    again.write(MARK)
    assert store.scan(INDEX) == store.scan(ROWS) == []


def test_days_that_a_wipe_does_not_cover_stay_indexed():
    store = MemoryStore()
    state = PartitionState(0, store)
    for offset, day in ((1, "2026-07-01"), (5, "2026-07-09")):
        night = {Sleep(offset, offset + 1, f"s{offset}").part: {"sleep_minutes": 1.0}}
        stamp = Stamp(0, NOW, 0, f"e{offset}", 0, offset)
        key = ("user_1", "garmin", day)
        state.rows.merge(RowUpdate(DAILY_SUMMARY, key, {}, stamp, night))
    state.rows.forget("user_1", (3,))
    state.write(MARK)
    assert [value for _, value in store.scan(INDEX)] == [b"2026-07-09"]


def test_waits_end_in_the_order_in_which_they_began_wherever_they_lie(disk: Disk):
    disk.state.waits.put(WANTED, waiting("late", NOW + 2))
    disk.state.waits.put(WANTED, waiting("early", NOW))
    disk.state.write(PartitionCheckpoint())
    disk.state.waits.put(WANTED, waiting("middle", NOW + 1))
    assert list(disk.state.waits.begun_before(NOW - 1)) == []
    due = list(disk.state.waits.begun_before(NOW + 1))
    assert [event.event_id for _, event in due] == ["early", "middle"]
    assert {expected for expected, _ in due} == {WANTED}
    for expected, event in disk.state.waits.begun_before(NOW + 1):
        disk.state.waits.end(expected, event.event_id)
    assert [event.event_id for event in disk.state.waits.take(WANTED)] == ["late"]


def test_of_two_claims_of_an_id_the_lower_offset_counts_and_old_ones_are_dropped(disk: Disk):
    disk.state.claims.load([b"e1"])
    disk.state.claims.claim(["e1"], Claim(8, NOW))
    disk.state.claims.claim(["e1"], Claim(9, NOW))
    (record,) = disk.state.claims.changed(NOW)
    disk.state.write(PartitionCheckpoint())
    disk.state.claims.load([b"e1"])
    disk.state.claims.restore_record(read_back(record))
    disk.state.write(PartitionCheckpoint())
    disk.state.claims.load([b"e1"])
    assert disk.state.claims.known("e1") == Claim(8, NOW)
    again = disk.again()
    again.claims.expire(NOW + 7 * DAY)
    again.claims.load([b"e1"])
    assert again.claims.known("e1") == Claim(8, NOW)
    again.claims.expire(NOW + 11 * DAY)
    again.claims.load([b"e1"])
    assert again.claims.known("e1") is None
