"""Goal: rows that are made again are those of the fold, wherever it was cut or killed."""

import random
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from headwater.processors.columns import RowUpdate, adopt, merge
from headwater.processors.providers.envelope import UNREADABLE, Malformed, Routing, event_id
from headwater.processors.providers.provider import Placement
from headwater.processors.providers.terra.provider import TERRA
from headwater.schemas.codec import decode, decode_row, encode, encode_row
from headwater.schemas.records import RowRebuilt, Stamp, WebhookReceived
from headwater.schemas.tables import CONNECTIONS, DAILY_SUMMARY, TABLES, USERS, Row, Table
from headwater.schemas.topics import EVENTS, WEBHOOKS
from headwater.streams.kafka.dead_letters import REPLAY_OF
from headwater.streams.kafka.records import Incoming, partition_of
from headwater.streams.pipeline.rebuild_reader import (
    Chunk,
    NormalizedDelivery,
    RawDelivery,
    RebuildReader,
)
from headwater.streams.pipeline.rebuilding import Rebuild, combined_row
from tests.e2e.deliveries import mixed
from tests.fakes.memory_store import MemoryStore
from tests.oracle import fold
from tests.unit.streams.test_intake import (
    DAILY,
    incoming,
    intake_of,
    on,
    raw,
    read_back,
    received,
    step,
)

PARTITIONS = 3
PLACEMENT = Placement({"terra": TERRA}, "user_")
DAY_MS = 86_400_000
KEY = ("user_1", "garmin", "2026-07-01")


def log_of(bodies: Sequence[bytes]) -> list[list[Incoming]]:
    """The topic `webhooks` that deliveries make, by partition."""
    partitions: list[list[Incoming]] = [[] for _ in range(PARTITIONS)]
    for number, body in enumerate(bodies):
        routing = TERRA.read(body, {})
        assert not isinstance(routing, Malformed)
        if number % 10 == 7:  # By an earlier release, which could not route it.
            routing = Routing(UNREADABLE, "")
        at_ms = 1_782_950_400_000 + number * 1_000
        delivery = WebhookReceived(
            event_id=event_id("terra", routing.type, routing.subject, body),
            request_id=f"r{number}", source="terra", type=routing.type, subject=routing.subject,
            reference=routing.reference, sent_at_ms=at_ms, updated_at_ms=0, received_at_ms=at_ms,
            body=body,
        )  # fmt: skip
        at = partition_of(PLACEMENT.owner_of(delivery).encode(), PARTITIONS)
        key, value = delivery.event_id.encode(), encode(delivery)
        offset = len(partitions[at])
        partitions[at].append(
            Incoming(WEBHOOKS, at, offset, at_ms, 0, key, value, None, len(key), len(value), ())
        )
    return partitions


def take(rebuild: Rebuild, records: Sequence[Incoming]) -> None:
    """Takes records as another process sends them that has read them."""
    sent = msgspec.msgpack.encode(rebuild.reader.chunk(records))
    rebuild.apply(msgspec.msgpack.decode(sent, type=Chunk))


def made(rebuild: Rebuild) -> dict[str, dict[tuple[str, ...], Row]]:
    """All rows that were made again: nothing is there to be compared with."""
    return {table.name: rows_of(rebuild, table) for table in TABLES}


def rows_of(rebuild: Rebuild, table: Table) -> dict[tuple[str, ...], Row]:
    values = [rebuilt.after for rebuilt in rebuild.rows(table, [0] * PARTITIONS)]
    rows = [decode_row(table, value) for value in values if value is not None]
    return {row.key: msgspec.structs.replace(row, state=None) for row in rows if not row.is_hidden}


@pytest.mark.parametrize("cut", [1, 7, 1_000])
def test_what_is_made_again_is_what_the_fold_says_wherever_it_was_killed(cut: int) -> None:
    bodies = mixed(11, 400)
    log = log_of([*bodies, *random.Random(11).sample(bodies, 40)])
    stores = [MemoryStore() for _ in range(PARTITIONS)]
    for records in log:
        for at in range(0, len(records), cut):
            # Another process, which knows what the stores say.
            rebuild = Rebuild(PLACEMENT, stores, DAY_MS)
            take(rebuild, records[at : at + cut])
            if at % 3 == 0:
                take(rebuild, records[at : at + cut])
    deliveries = [
        (one.partition, one.offset, decode(one.value, WebhookReceived))
        for records in log
        for one in records
    ]
    expected = fold(deliveries, user_prefix="user_").rows
    assert made(Rebuild(PLACEMENT, stores, DAY_MS)) == expected
    assert sum(map(len, expected.values())) > 50


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_table_that_is_made_again_alone_has_the_rows_that_it_has_among_others(
    table: Table,
) -> None:
    bodies = mixed(12, 400)
    log = log_of([*bodies, *random.Random(12).sample(bodies, 40)])
    everything, alone = (
        Rebuild(PLACEMENT, [MemoryStore() for _ in range(PARTITIONS)], DAY_MS, only)
        for only in (None, table)
    )
    for rebuild in (everything, alone):
        for records in log:
            take(rebuild, records)
    assert rows_of(alone, table) == rows_of(everything, table)


@pytest.mark.parametrize("table", [None, DAILY_SUMMARY])
@pytest.mark.parametrize("attempts", [(1_000, 9_000), (9_000, 1_000), (1_000, 5_500, 9_000)])
def test_a_compacted_log_makes_the_rows_that_the_first_attempt_made(
    attempts: tuple[int, ...], table: Table | None
) -> None:
    """Compaction keeps the last attempt to deliver something, which was signed later or earlier."""

    def sent(event_id: str, at_ms: int, steps: bytes) -> WebhookReceived:
        body = DAILY.replace(b'"steps": 100', b'"steps": ' + steps)
        fields = {"reference": "user_1", "event_id": event_id, "body": body}
        return received(sent_at_ms=1_782_950_400_000 + at_ms, **fields)

    first, *later = attempts
    deliveries = [sent("old", first, b"1"), sent("new", 5_000, b"2")]
    deliveries += [sent("old", at_ms, b"1") for at_ms in later]
    intake, log = intake_of(), [raw(one, at) for at, one in enumerate(deliveries)]
    for record in log:
        for restated in on(step(intake, record), WEBHOOKS):
            log.append(replace(read_back(restated), offset=len(log)))
    assert len(log) == len(deliveries) + len(later), "a restated delivery is not restated again"
    compacted = {record.key: record for record in log}
    live = intake.states[0].rows.get(DAILY_SUMMARY, KEY)
    for kept in (log, compacted.values()):
        rebuild = Rebuild(PLACEMENT, [MemoryStore()], DAY_MS, table)
        take(rebuild, sorted(kept, key=lambda record: record.offset))
        (row,) = rows_of(rebuild, DAILY_SUMMARY).values()
        assert live is not None
        assert row.values == live.values


@pytest.mark.parametrize("table", [None, DAILY_SUMMARY])
@pytest.mark.parametrize("key", [None, b"another key"])
def test_a_record_that_is_a_dead_letter_at_intake_for_its_key_makes_no_row(
    key: bytes | None, table: Table | None
) -> None:
    log = log_of(mixed(15, 60))
    rebuild = Rebuild(PLACEMENT, [MemoryStore() for _ in range(PARTITIONS)], DAY_MS, table)
    for records in log:
        take(rebuild, [replace(record, key=key) for record in records])
    assert rows_of(rebuild, DAILY_SUMMARY) == {}


@pytest.mark.parametrize("table", [None, DAILY_SUMMARY, USERS])
@pytest.mark.parametrize("at", range(PARTITIONS))
def test_rows_of_an_unreadable_delivery_whose_provider_was_fixed_are_made_again(
    at: int, table: Table | None
) -> None:
    body = DAILY.replace(b'"user_id": "t1"', b'"user_id": "t1", "reference_id": "user_1"')
    kept = received(type=UNREADABLE, subject="", body=body)
    replayed = raw(kept, 1, partition=at, headers=((REPLAY_OF, b"webhooks/0@0"),))
    rebuild = Rebuild(PLACEMENT, [MemoryStore() for _ in range(PARTITIONS)], DAY_MS, table)
    take(rebuild, [raw(kept, 0, partition=at), replayed])
    filled = USERS if table is USERS else DAILY_SUMMARY
    (made_again,) = rows_of(rebuild, filled).values()
    assert made_again.key[0] == "user_1"
    assert {item.offset for item in made_again.stamps if item is not None} == {0}


def test_days_of_users_are_normalized_by_whoever_reads_them_and_connections_are_not() -> None:
    reading = RebuildReader(PLACEMENT, PARTITIONS, DAILY_SUMMARY)
    result = [
        delivery
        for records in log_of(mixed(13, 400))
        for delivery in reading.chunk(records).deliveries
    ]
    whole = {
        decode(item.value, WebhookReceived).type for item in result if isinstance(item, RawDelivery)
    }
    ready = [item for item in result if isinstance(item, NormalizedDelivery)]
    assert {patch.table for item in ready for patch in item.patches} == {DAILY_SUMMARY.name}
    assert "auth" in whole
    assert len(ready) > 100


def row(steps: int | None, offset: int, strain: float | None = None, later: int = 0) -> Row:
    """A day whose steps a delivery at an offset has set, and its strain one at a later offset."""
    values = RowUpdate(DAILY_SUMMARY, KEY, {"steps": steps}, stamp(offset))
    more = RowUpdate(DAILY_SUMMARY, KEY, {"strain": strain}, stamp(later))
    return merge(merge(None, values), more)


def stamp(offset: int) -> Stamp:
    return Stamp(0, 1_000 + offset, 0, f"e{offset}", 0, offset)


def test_a_row_that_was_made_again_keeps_what_later_deliveries_have_said() -> None:
    held, rebuilt = row(100, 3, strain=2.5, later=12), row(200, 3)
    adopted = adopt(DAILY_SUMMARY, held, rebuilt, [10])
    assert adopted == row(200, 3, strain=2.5, later=12)
    assert adopt(DAILY_SUMMARY, held, rebuilt, [20]) == rebuilt
    assert adopt(DAILY_SUMMARY, None, rebuilt, [10]) == rebuilt
    assert adopt(DAILY_SUMMARY, row(100, 3), None, [10]) is None
    assert adopt(DAILY_SUMMARY, row(100, 12), rebuilt, [10]) == row(100, 12)


@pytest.mark.parametrize("rebuilt", [row(200, 3), None])
def test_an_owner_takes_a_row_that_was_made_again_and_says_so(rebuilt: Row | None) -> None:
    intake = intake_of()
    value = None if rebuilt is None else encode_row(DAILY_SUMMARY, rebuilt)
    reported = RowRebuilt(rebuild="r", table=DAILY_SUMMARY.name, row=value, ends=[10] * 99)
    key = DAILY_SUMMARY.row_key(KEY)
    (answer,) = on(step(intake, incoming(EVENTS, key, encode(reported))), DAILY_SUMMARY.topic)
    assert answer.key == key
    result = None if answer.value is None else decode_row(DAILY_SUMMARY, answer.value)
    assert result == rebuilt


def closed(offset: int) -> Row:
    """A connection that a delivery has closed, at its own time."""
    values = {"user_id": "user_1", "active": False}
    return merge(None, RowUpdate(CONNECTIONS, ("t-1",), values, stamp(offset)))


@pytest.mark.parametrize(
    ("table", "held", "rebuilt", "is_changed"),
    [
        (DAILY_SUMMARY, row(100, 3), row(100, 3), False),
        (DAILY_SUMMARY, row(100, 3), row(100, 4), False),
        (DAILY_SUMMARY, row(100, 3), row(200, 3), True),
        (DAILY_SUMMARY, None, row(100, 3), True),
        (DAILY_SUMMARY, row(100, 3), None, True),
        (DAILY_SUMMARY, row(100, 12), None, False),
        (CONNECTIONS, closed(3), closed(4), True),
    ],
)
def test_a_row_differs_in_what_readers_see(
    table: Table, held: Row | None, rebuilt: Row | None, is_changed: bool
) -> None:
    before, after = (None if item is None else encode_row(table, item) for item in (held, rebuilt))
    combined = combined_row(table, 0, b"key", before, after, [10] * PARTITIONS)
    assert combined.is_changed == is_changed
    expected = held if held == row(100, 12) else rebuilt
    assert combined.after == (None if expected is None else encode_row(table, expected))
