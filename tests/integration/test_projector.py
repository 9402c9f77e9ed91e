"""The projector on a real Kafka and a real Postgres: records become rows, or are kept.

The broker is this module's own: its topics hold records that no other test should meet. All tests
share the topics; each has a database of its own, so each reads them from the beginning.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headwater.projections.deliveries.plan import DELIVERIES, TOPICS
from headwater.projections.deliveries.queries import DeadLetterFilter, Reader
from headwater.projections.errors import InvalidCursor
from headwater.projections.projector.store import Store
from headwater.schemas.avro_schemas import IDS
from headwater.schemas.tables import CONNECTIONS, DAILY_SUMMARY, SLEEP_SESSIONS
from headwater.schemas.topics import DEAD_LETTERS
from tests.integration.projecting import (
    NOW_MS,
    PARTITIONS,
    System,
    forget,
    in_a_system,
    with_topics,
)
from tests.integration.written import (
    Written,
    apply,
    day,
    duplicate,
    outcome,
    row,
    stamp,
    table_record,
)
from tests.throwaway_kafka import ThrowawayKafka


@pytest.fixture(scope="module")
def broker(scratch: Path) -> Iterator[ThrowawayKafka]:
    with with_topics(scratch / "kafka of projector") as broker:
        yield broker


def letter(offset_of: int, **headers: str) -> Written:
    named = {
        "__connect.errors.topic": "webhooks",
        "__connect.errors.offset": str(offset_of),
        "headwater.reason": "undecodable_record",
        "headwater.dead_at_ms": str(NOW_MS + offset_of),
        **{f"headwater.{name}": value for name, value in headers.items()},
    }
    encoded = [(name, value.encode()) for name, value in named.items()]
    encoded.append(("headwater.key", b"\x00key"))
    return Written(DEAD_LETTERS, 1, b"its own", b"\xff\x00value", encoded)


def marker(place: str, at_ms: int = NOW_MS) -> Written:
    headers = [
        ("headwater.replayed", place.encode()),
        ("headwater.replayed_at_ms", str(at_ms).encode()),
    ]
    return Written(DEAD_LETTERS, 0, b"\x00key", None, headers)


def test_records_become_rows(broker: ThrowawayKafka, migrated: str):
    async def scenario(system: System) -> None:
        night = row(SLEEP_SESSIONS, ("arrive", "oura", "2026-01-01T22:00:00Z"), raw='{"a":  1}')
        link = row(CONNECTIONS, ("arrive",), stamp(), user_id="arrive", active=True)
        ends = await system.write(
            day("arrive", "2026-01-01", 0, steps=1),
            day("arrive", "2026-01-01", 0, steps=2, bed_time="2026-01-01T22:00:00+02:00"),
            table_record(SLEEP_SESSIONS, night, 1),
            table_record(CONNECTIONS, link, 1),
            outcome("arrive", 1),
            duplicate("arrive"),
            duplicate("arrive"),
        )
        async with system.projector() as projector:
            await system.until_applied(ends)
            assert set(projector.lag.values()) == {0}
        days = (
            "select steps, bed_time::text, updated_at from daily_summary where user_id = 'arrive'"
        )
        [(steps, bed_time, updated_at)] = await system.rows(days)
        assert (steps, bed_time) == (2, "2026-01-01 20:00:00+00")
        assert updated_at.timestamp() * 1000 == NOW_MS
        raw = "select raw::text from sleep_sessions where user_id = 'arrive'"
        assert await system.rows(raw) == [('{"a":  1}',)]
        active = "select active from terra_connections where terra_user_id = 'arrive'"
        assert await system.rows(active) == [(True,)]
        copies = (
            'select partition, "offset", first_offset from duplicates where request_id = %(id)s'
        )
        assert await system.rows(copies, id="arrive") == [(3, 18, 17)]

    in_a_system(broker, migrated, scenario)


def test_readers_find_what_was_projected(broker: ThrowawayKafka, migrated: str):
    async def scenario(system: System) -> None:
        ends = await system.write(
            day("found", "2026-01-01"),
            outcome("found", 1),
            duplicate("copy of found"),
        )
        async with system.projector():
            await system.until_applied(ends)
        async with Reader(system.dsn) as reader:
            result = await reader.outcome("found")
            assert result is not None
            assert (result.status, result.at.timestamp()) == ("processed", 1_767_225_600.25)
            assert await reader.outcome("none\x00such") is None
            assert ("processed", "") in [
                (c.status, c.reason) for c in await reader.outcome_counts()
            ]
            [journey] = await reader.traces(request_id="req-found", limit=1)
            assert [hop.stage for hop in journey.hops] == ["received", "admitted", "normalized"]
            [copy] = await reader.traces(request_id="copy of found", limit=1)
            assert [hop.stage for hop in copy.hops] == ["received", "duplicate"]
            for more in ({"user_id": "user_1"}, {"level": "info"}, {}):
                assert journey in await reader.traces(**more, limit=10)
            assert journey in await reader.traces(user_id="user_1", level="info", limit=10)
            positions = await reader.projection_positions()
            assert len(positions) == len(TOPICS) * PARTITIONS
            assert {position.projection for position in positions} == {DELIVERIES.name}

    in_a_system(broker, migrated, scenario)


def test_a_tombstone_deletes_the_row(broker: ThrowawayKafka, migrated: str):
    async def scenario(system: System) -> None:
        key = DAILY_SUMMARY.row_key(("tomb", "garmin", "2026-01-01"))
        written = [day("tomb", "2026-01-01", steps=1), outcome("tomb"), duplicate("tomb")]
        count = """
            select (select count(*) from daily_summary where user_id = 'tomb')
                + (select count(*) from webhook_outcomes where event_id = 'tomb')
                + (select count(*) from duplicates where request_id = 'tomb')
        """
        async with system.projector():
            await system.until_applied(await system.write(*written))
            assert await system.rows(count) == [(3,)]
            keys = (key, b"tomb", b"tomb")
            removed = [Written(r.topic, 0, k, None) for r, k in zip(written, keys, strict=True)]
            await system.until_applied(await system.write(*removed))
            assert await system.rows(count) == [(0,)]

    in_a_system(broker, migrated, scenario)


def test_what_cannot_be_applied_is_kept_and_the_rest_goes_on(
    broker: ThrowawayKafka, migrated: str, caplog: pytest.LogCaptureFixture
):
    async def scenario(system: System) -> None:
        bad_night = row(SLEEP_SESSIONS, ("bad", "oura", "2026-01-01T22:00:00Z"), raw="{no json")
        deep = row(SLEEP_SESSIONS, ("bad", "oura", "2026-01-02T22:00:00Z"), raw="[" * 100_000)
        ends = await system.write(
            day("bad", "2026-01-01", steps=1),
            Written(DAILY_SUMMARY.topic, 0, b"bad bytes", b"\xffnothing of ours"),
            day("bad", "2026-02-30", steps=2),
            day("", "2026-01-01", steps=2),
            day("bad", "2026-01-02", steps=3, bed_time="when it was dark"),
            day("bad", "2026-01-03", steps=4),
            table_record(SLEEP_SESSIONS, bad_night),
            table_record(SLEEP_SESSIONS, deep),
            outcome("bad status", status="lost"),
            outcome("bad good"),
        )
        async with system.projector() as projector:
            await system.until_applied(ends)
            assert projector.refused >= 7
        days = "select steps from daily_summary where user_id = 'bad' order by steps"
        assert await system.rows(days) == [(1,), (4,)]
        async with Reader(system.dsn) as reader:
            assert await reader.outcome("bad good") is not None
            kept = await reader.projection_errors(limit=100)
        assert len(kept) == projector.refused
        said = {(error.topic, error.error) for error in kept}
        for topic, part in (
            ("daily-summary", "Confluent wire format"),
            ("daily-summary", "2026-02-30"),
            ("daily-summary", "violates check constraint"),
            ("daily-summary", "when it was dark"),
            ("sleep-sessions", "invalid input syntax for type json"),
            ("sleep-sessions", "stack depth limit exceeded"),
            ("webhook-outcomes", "violates check constraint"),
        ):
            assert any(topic == where and part in error for where, error in said), (part, said)
        assert any(error.value == b"\xffnothing of ours" for error in kept)

    in_a_system(broker, migrated, scenario)
    assert "projection_errors" in caplog.text


def test_what_a_later_release_wrote_is_waited_for_and_other_partitions_go_on(
    broker: ThrowawayKafka, migrated: str, caplog: pytest.LogCaptureFixture
):
    async def scenario(system: System) -> None:
        async def is_said() -> bool:
            return f"{DAILY_SUMMARY.topic}/1@{offset}" in caplog.text

        later = b"\x00" + (max(IDS.values()) + 1).to_bytes(4) + b"\x02"
        before = await system.write(day("later", "2026-01-01", 1, steps=1))
        ((position, offset),) = before.items()
        await system.write(Written(*position, b'["later","garmin","2026-01-02"]', later))
        await system.write(day("later", "2026-01-03", 1, steps=3))
        others = await system.write(day("later", "2026-01-04", 0, steps=4), outcome("later", 1))
        try:
            async with system.projector() as projector:
                await system.until_applied(before | others)
                assert projector.positions[position] == offset
            days = "select steps from daily_summary where user_id = 'later' order by steps"
            assert await system.rows(days) == [(1,), (4,)]
            kept = await system.rows("select topic, partition from projection_errors")
            assert position not in kept
            await system.until(is_said)
        finally:
            await forget(system.bootstrap, position, offset + 1)

    in_a_system(broker, migrated, scenario)


def test_dead_letters_keep_their_bytes_and_know_their_replay(broker: ThrowawayKafka, migrated: str):
    async def scenario(system: System) -> None:
        letters = [letter(n, request_id=f"r{n}") for n in range(5)]
        end = (await system.write(*letters))[DEAD_LETTERS, 1]
        first = end - 5
        # The first partition may well be read before the second: the marker before the letter.
        ends = await system.write(marker(f"1@{first}"), marker(f"1@{end}"), marker("7@7"))
        async with system.projector(), Reader(system.dsn) as reader:
            await system.until_applied({(DEAD_LETTERS, 1): end, **ends})
            await system.until_applied(await system.write(letter(5)))
            whole = await reader.dead_letter(1, first)
            assert whole is not None
            assert (whole.key, whole.value) == (b"\x00key", b"\xff\x00value")
            assert ("headwater.request_id", "r0") in whole.headers
            assert (whole.reason, whole.original_offset) == ("undecodable_record", 0)
            assert await reader.dead_letter(1, end + 1) is None
            pending = await reader.pending_dead_letters(limit=10)
            assert [dead.offset for dead in pending] == [first + n for n in (1, 2, 3, 4)]
            later = await reader.pending_dead_letters(limit=10, after=(1, first + 2))
            assert [dead.offset for dead in later] == [first + 3, first + 4]
            seen: list[int] = []
            cursor = None
            while True:
                page = await reader.dead_letters(limit=4, after=cursor)
                seen += [dead.offset for dead in page.rows]
                cursor = page.cursor
                if cursor is None:
                    break
            assert seen == [first + n for n in (5, 4, 3, 2, 1, 0)]
            for wrong in ("no cursor", "WyIyMDI2LTAxLTAxVDAwOjAwOjAwWiIsOTk5OTk5OTk5OTk5LDFd"):
                with pytest.raises(InvalidCursor):
                    await reader.dead_letters(limit=1, after=wrong)

    in_a_system(broker, migrated, scenario)


def test_a_delivery_that_died_once_is_one_dead_letter(broker: ThrowawayKafka, migrated: str):
    async def scenario(system: System) -> None:
        def dead(at: int, **more: str) -> Written:
            return letter(at, event_id="e1", request_id="r1", **more)

        written = [dead(1), dead(2), dead(3, rule="report"), letter(4), letter(5)]
        end = (await system.write(*written))[DEAD_LETTERS, 1]
        first = end - 5
        async with system.projector(), Reader(system.dsn) as reader:

            async def listed() -> list[int]:
                page = await reader.dead_letters(limit=100)
                result = [item for item in page.rows if item.offset >= first]
                pending = await reader.pending_dead_letters(limit=100, after=(1, first - 1))
                assert {item.offset for item in pending} == {
                    item.offset for item in result if item.replayed_at is None
                }
                return [item.offset - first for item in result]

            await system.until_applied({(DEAD_LETTERS, 1): end})
            # What a worker wrote again after a crash is a copy; what nobody could read is none.
            assert await listed() == [4, 3, 2, 0]
            assert await reader.dead_letter(1, first + 1) is not None
            replayed = marker(f"1@{first}", at_ms=NOW_MS + 10)
            await system.until_applied(await system.write(replayed))
            assert await listed() == [4, 3, 2, 0]
            await system.until_applied(await system.write(dead(20), dead(21)))
            assert await listed() == [5, 4, 3, 2, 0]
            pending = await reader.pending_dead_letters(limit=100)
            groups = await reader.dead_reasons()
            counted = {group.reason: group.deliveries for group in groups if group.state == "dead"}
            assert counted == Counter(item.reason for item in pending)
            (reason, *_) = counted
            page = await reader.dead_letters(limit=100, selected=DeadLetterFilter(reason=reason))
            assert {item.reason for item in page.rows} == {reason}
            other = DeadLetterFilter(reason=reason, source="nobody")
            assert (await reader.dead_letters(limit=100, selected=other)).rows == ()

    in_a_system(broker, migrated, scenario)


def test_many_refused_values_leave_a_usable_connection(migrated: str):
    async def scenario() -> None:
        store = Store(migrated, projection=DELIVERIES, clock=lambda: NOW_MS)
        try:
            for _ in range(2):
                await apply(store, [day("u", f"2026-01-{n:02}") for n in range(28, 36)])
        finally:
            await store.close()

    asyncio.run(scenario())
    with psycopg.connect(migrated) as connection:
        counts = (
            "select (select count(*) from daily_summary), (select count(*) from projection_errors)"
        )
        assert connection.execute(counts).fetchone() == (4, 8)
