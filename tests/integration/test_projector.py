"""The projector on a real Kafka and a real Postgres: rows arrive, once, through every trouble.

The broker is this module's own: its topics hold records that no other test should meet. All tests
share the topics; each has a database of its own, so each reads them from the beginning.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from click.testing import CliRunner

from headwater.gateway.cli.output import counted
from headwater.gateway.cli.topic_repair import accept_loss
from headwater.processors.runs.durations import KEEP_FOREVER
from headwater.projections import catalogue
from headwater.projections.catalogue import run_projector
from headwater.projections.deliveries.plan import DELIVERIES, TOPICS
from headwater.projections.deliveries.queries import Reader
from headwater.projections.errors import InvalidCursor, LogTruncated
from headwater.projections.postgres.migrate import migrate
from headwater.projections.projector import projector as projecting
from headwater.projections.projector.projection import Partition
from headwater.projections.projector.projector import Projector
from headwater.projections.projector.store import Store
from headwater.projections.workflows.plan import WORKFLOWS
from headwater.schemas.avro_schemas import IDS
from headwater.schemas.tables import CONNECTIONS, DAILY_SUMMARY, SLEEP_SESSIONS
from headwater.schemas.topics import DEAD_LETTERS, WORKFLOW_HISTORY
from headwater.streams.kafka import truncation
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.embedded import EmbeddedKafka
from headwater.streams.kafka.readers import Offsets
from tests.cut_logs import cut
from tests.integration.written import (
    Written,
    apply,
    batch,
    day,
    duplicate,
    outcome,
    row,
    stamp,
    table_record,
)
from tests.throwaway_kafka import ThrowawayKafka
from tests.waiting import until

PARTITIONS = 2
NOW_MS = 1_767_300_000_000
PATIENCE_S = 120.0

Ends = dict[Partition, int]


@pytest.fixture(scope="module")
def broker(scratch: Path) -> Iterator[EmbeddedKafka]:
    broker = ThrowawayKafka(scratch / "kafka of projector", port=0, report=print)
    try:
        asyncio.run(make_topics(broker.start()))
        yield broker
    finally:
        broker.kill()


async def make_topics(bootstrap: str, *more: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in more or TOPICS])
    finally:
        await admin.close()


class System:
    """The topics, a fresh database, and as many projectors as a test likes."""

    def __init__(self, bootstrap: str, dsn: str) -> None:
        self.bootstrap = bootstrap
        self.dsn = dsn
        self.moved = asyncio.Event()

    async def write(self, *records: Written) -> Ends:
        """Appends records; returns where their partitions end."""
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, linger_ms=5)
        await producer.start()
        try:
            sent = [
                await producer.send(
                    r.topic, r.value, r.key, partition=r.partition, headers=list(r.headers)
                )
                for r in records
            ]
            placed = await asyncio.gather(*sent)
        finally:
            await producer.stop()
        return {(position.topic, position.partition): position.offset + 1 for position in placed}

    def make_projector(self, **more: float) -> Projector:
        return Projector(
            projection=DELIVERIES,
            cluster=Cluster(self.bootstrap),
            store=Store(self.dsn, projection=DELIVERIES, clock=lambda: NOW_MS, **more),
            clock=lambda: NOW_MS,
            detector=truncation,
            on_batch=lambda _: self.moved.set(),
        )

    @contextlib.asynccontextmanager
    async def projector(self, **more: float) -> AsyncIterator[Projector]:
        stop = asyncio.Event()
        projector = self.make_projector(**more)
        running = asyncio.create_task(projector.run(stop))
        try:
            yield projector
        finally:
            stop.set()
            await running

    async def until(self, reached: Callable[[], Awaitable[bool]]) -> None:
        """Waits until something is reached, looking after each batch and now and then."""
        async with asyncio.timeout(PATIENCE_S):
            while not await reached():
                self.moved.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await self.moved.wait()

    async def until_applied(self, ends: Ends) -> None:
        async def reached() -> bool:
            rows = await self.rows("select topic, partition, next_offset from projection_offsets")
            stored = {(topic, number): offset for topic, number, offset in rows}
            return all(stored.get(position, 0) >= end for position, end in ends.items())

        await self.until(reached)

    async def rows(self, query: str, **parameters: object) -> list[tuple]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            return await (await connection.execute(query.encode(), parameters)).fetchall()


def in_a_system(
    broker: EmbeddedKafka, dsn: str, scenario: Callable[[System], Awaitable[None]]
) -> None:
    async def run() -> None:
        await scenario(System(broker.start(), dsn))

    asyncio.run(run())


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


def test_records_become_rows(broker: EmbeddedKafka, migrated: str):
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


def test_readers_find_what_was_projected(broker: EmbeddedKafka, migrated: str):
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


def test_a_restart_continues_where_postgres_is(broker: EmbeddedKafka, migrated: str):
    async def scenario(system: System) -> None:
        await_first = await system.write(day("restart", "2026-01-01", steps=1))
        async with system.projector():
            await system.until_applied(await_first)
        written = "select changed_in::text from daily_summary where user_id = 'restart'"
        before = await system.rows(written)
        ends = await system.write(day("restart", "2026-01-02", steps=1))
        async with system.projector() as projector:
            await system.until_applied(ends)
        assert projector.records == 1
        after = await system.rows(written + " order by datetime")
        assert after[0] == before[0]
        assert len(after) == 2

    in_a_system(broker, migrated, scenario)


def test_a_second_projector_takes_its_share(broker: EmbeddedKafka, migrated: str):
    async def scenario(system: System) -> None:
        ends: Ends = {}

        async def wave(number: int) -> None:
            days = [day(f"share_{n}", f"2026-01-0{number}", n % 2, steps=n) for n in range(500)]
            ends.update(await system.write(*days))

        await wave(1)
        async with system.projector() as first:
            await system.until_applied(ends)

            async def both_have_some() -> bool:
                return bool(first.positions) and bool(second.positions)

            async with system.projector() as second:
                await wave(2)
                await system.until(both_have_some)
                await wave(3)
                await system.until_applied(ends)
                assert not first.positions.keys() & second.positions.keys()
            await wave(4)
            await system.until_applied(ends)
        [(rows,)] = await system.rows(
            "select count(*) from daily_summary where user_id ~ '^share_'"
        )
        assert rows == 2_000
        [(written,)] = await system.rows("select sum(next_offset)::integer from projection_offsets")
        assert first.records + second.records == written

    in_a_system(broker, migrated, scenario)


def test_connections_lost_amid_a_batch_lose_nothing(
    broker: EmbeddedKafka, migrated: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "headwater.projector")

    async def scenario(system: System) -> None:
        waiting = (
            "select pid from pg_stat_activity where datname = current_database() "
            "and application_name ~ '^headwater-projector' and wait_event_type = 'Lock'"
        )

        async def blocked() -> bool:
            return bool(await system.rows(waiting))

        async def is_gone(pid: int) -> bool:
            return not await system.rows(f"select from pg_stat_activity where pid = {pid}")

        ends = await system.write(*[day(f"lost_{n}", "2026-01-01", steps=n) for n in range(100)])
        async with system.projector() as projector:
            async with await psycopg.AsyncConnection.connect(system.dsn) as other:
                await other.execute("lock table daily_summary in share mode")
                for _ in range(2):
                    await system.until(blocked)
                    ended = waiting.replace("pid", "pid, pg_terminate_backend(pid)", 1)
                    for pid, _ in await system.rows(ended):
                        # Else the next one to be ended might be the same.
                        await system.until(partial(is_gone, pid))
            await system.until_applied(ends)
            assert projector.refused == 0
        [(rows,)] = await system.rows("select count(*) from daily_summary where user_id ~ '^lost_'")
        assert rows == 100

    in_a_system(broker, migrated, scenario)
    said = [record.message for record in caplog.records]
    assert sum("trying again" in line for line in said) == 1
    assert "projecting again" in said


def test_a_batch_that_takes_too_long_is_halved_down_to_one_record_and_grows_again(
    broker: EmbeddedKafka, migrated: str, caplog: pytest.LogCaptureFixture
):
    async def scenario(system: System) -> None:
        async def is_at_one() -> bool:
            return any(line.endswith("took too long, trying 1") for line in caplog.messages)

        ends = await system.write(*[day(f"slow_{n}", "2026-01-01", steps=n) for n in range(200)])
        async with await psycopg.AsyncConnection.connect(system.dsn) as other:
            await other.execute("lock table daily_summary in share mode")
            async with system.projector(statement_timeout_s=0.3) as projector:
                await system.until(is_at_one)
                await other.rollback()
                ends |= await system.write(day("slow_last", "2026-01-01", steps=1))
                await system.until_applied(ends)
                assert projector.refused == 0
                assert projector.batches < projector.records / 2
        [(rows,)] = await system.rows("select count(*) from daily_summary where user_id ~ '^slow_'")
        assert rows == 201

    in_a_system(broker, migrated, scenario)


def test_a_tombstone_deletes_the_row(broker: EmbeddedKafka, migrated: str):
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
    broker: EmbeddedKafka, migrated: str, caplog: pytest.LogCaptureFixture
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
    broker: EmbeddedKafka, migrated: str, caplog: pytest.LogCaptureFixture
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


async def forget(bootstrap: str, place: Partition, before: int) -> None:
    """Takes the records before an offset out of a partition: other tests read it, too."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(*place): RecordsToDelete(before)})
    finally:
        await admin.close()


def test_dead_letters_keep_their_bytes_and_know_their_replay(broker: EmbeddedKafka, migrated: str):
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


def test_a_delivery_that_died_once_is_one_dead_letter(broker: EmbeddedKafka, migrated: str):
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

    in_a_system(broker, migrated, scenario)


def test_a_database_that_went_back_is_filled_again(broker: EmbeddedKafka, migrated: str):
    async def scenario(system: System) -> None:
        async with system.projector():
            await system.until_applied(await system.write(day("back", "2026-01-01", steps=1)))
            async with await psycopg.AsyncConnection.connect(system.dsn) as other:
                # Locked in the projector's order: one may be at work, and both would wait for ever.
                await other.execute("truncate projection_offsets, daily_summary")
            await system.until_applied(await system.write(day("back", "2026-01-02", steps=2)))
        days = "select steps from daily_summary where user_id = 'back' order by steps"
        assert await system.rows(days) == [(1,), (2,)]

    in_a_system(broker, migrated, scenario)


def test_what_postgres_has_lost_is_projected_again_though_nothing_new_comes(
    broker: EmbeddedKafka, migrated: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(projecting, "_CHECK_EVERY_S", 0.1)

    async def scenario(system: System) -> None:
        async with system.projector():
            ends = await system.write(day("quiet", "2026-01-01", steps=1))
            await system.until_applied(ends)
            async with await psycopg.AsyncConnection.connect(system.dsn) as other:
                await other.execute("truncate projection_offsets, daily_summary")
            await system.until_applied(ends)
        assert await system.rows("select steps from daily_summary where user_id = 'quiet'") == [
            (1,)
        ]

    in_a_system(broker, migrated, scenario)


def test_a_projection_whose_log_was_cut_waits_and_the_others_go_on_until_the_loss_is_accepted(
    broker: EmbeddedKafka,
    migrated: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(catalogue, "_TRUNCATED_S", 0.1)

    async def scenario(system: System) -> None:
        await make_topics(system.bootstrap, WORKFLOW_HISTORY, "audit")
        insert = (
            "insert into projection_offsets (projection, topic, partition, next_offset) "
            "values (%(p)s, %(t)s, 0, 1000000) returning 1"
        )
        for projection, topic in ((DELIVERIES, "traces"), (WORKFLOWS, "workflow-history")):
            await system.rows(insert, p=projection.name, t=topic)
        stop = asyncio.Event()
        running = asyncio.create_task(
            run_projector(
                cluster=Cluster(system.bootstrap),
                dsn=system.dsn,
                clock=lambda: NOW_MS,
                detector=truncation,
                stop=stop,
                retention=KEEP_FOREVER,
            )
        )

        async def are_named() -> bool:
            return all(
                f"{topic}/0 from offset {end} to 999999" in caplog.text
                for topic, end in ends.items()
            )

        async def audited() -> bool:
            return bool(await system.rows(audit))

        audit = "select 1 from projection_offsets where projection = 'audit' and topic = 'audit'"
        offsets = Offsets(Cluster(system.bootstrap), "test")
        try:
            ends = await offsets.ends(["traces", "workflow-history"], 0)
            await system.until(are_named)
            await system.until(audited)
            assert not running.done()
            written = await system.write(day("cut", "2026-01-01", steps=7))
            await asyncio.to_thread(accept_all, system)
            await system.until_applied(written)
        finally:
            stop.set()
            await running
            await offsets.stop()
        accepted = "select topic from projection_errors where error like 'lost from Kafka%%'"
        assert sorted(await system.rows(accepted)) == [("traces",), ("workflow-history",)]

    in_a_system(broker, migrated, scenario)


def test_a_log_that_is_cut_while_it_is_read_is_said(scratch: Path, migrated: str):
    broker = ThrowawayKafka(scratch / "kafka that is cut", port=0, report=print)
    folder = broker._log_dir / f"{DAILY_SUMMARY.topic}-0"

    async def scenario(system: System) -> None:
        running = asyncio.create_task(system.make_projector().run(asyncio.Event()))
        days = [day("cut", f"2026-01-{n:02}", steps=n) for n in range(1, 29)]
        await system.until_applied(await system.write(*days))
        await asyncio.to_thread(broker.kill)
        segment = max(folder.glob("*.log"))
        os.truncate(segment, segment.stat().st_size // 2)
        await asyncio.to_thread(broker.start)
        with pytest.raises(LogTruncated, match=f"{DAILY_SUMMARY.topic}/0 from offset "):
            async with asyncio.timeout(PATIENCE_S):
                await running

    try:
        asyncio.run(make_topics(broker.start()))
        in_a_system(broker, migrated, scenario)
    finally:
        broker.kill()


@pytest.mark.parametrize("same", [True, False], ids=["the same", "another"])
def test_a_log_that_was_cut_and_is_longer_again_is_said_and_read_on_once_that_is_accepted(
    scratch: Path, migrated: str, same: bool
):
    broker = ThrowawayKafka(scratch / f"kafka that is longer again {same}", port=0, report=print)
    topic = DAILY_SUMMARY.topic

    async def scenario(system: System) -> None:
        ends = await (overtaken(system, broker) if same else overtaken_meanwhile(system, broker))
        await asyncio.to_thread(accept_all, system, 1)
        async with system.projector():
            await system.until_applied(ends)
        rows = "select steps from daily_summary where user_id = 'new' order by steps"
        assert await system.rows(rows) == [(n,) for n in range(1, 7)]
        accepted = f"lost from Kafka, and accepted: {topic}/0 from offset 3 to 5"
        assert await system.rows("select error from projection_errors") == [(accepted,)]

    try:
        asyncio.run(make_topics(broker.start()))
        in_a_system(broker, migrated, scenario)
    finally:
        broker.kill()


async def overtaken(system: System, broker: ThrowawayKafka) -> Ends:
    """A projector whose position is behind the new end when it fetches again."""
    projector, where = system.make_projector(), TopicPartition(DAILY_SUMMARY.topic, 0)
    running = asyncio.create_task(projector.run(asyncio.Event()))
    await system.until_applied(await six_days(system, "cut"))
    assert projector._consumer is not None
    projector._consumer.pause(where)
    ends = await lose_three_of(system, broker)
    projector._consumer.resume(where)
    await says_what_is_lost(running)
    return ends


async def overtaken_meanwhile(system: System, broker: ThrowawayKafka) -> Ends:
    """A projector that goes on where another was."""
    async with system.projector():
        await system.until_applied(await six_days(system, "cut"))
    ends = await lose_three_of(system, broker)
    await says_what_is_lost(asyncio.create_task(system.make_projector().run(asyncio.Event())))
    return ends


async def six_days(system: System, user: str) -> Ends:
    """Write days of a user, each in a batch of its own."""
    return [await system.write(day(user, f"2026-01-{n:02}", steps=n)) for n in range(1, 7)][-1]


async def lose_three_of(system: System, broker: ThrowawayKafka) -> Ends:
    """Have the broker lose three of six days, and take six others."""
    await asyncio.to_thread(broker.kill)
    cut(broker, DAILY_SUMMARY.topic, 0, 3)
    await asyncio.to_thread(broker.start)
    return await six_days(system, "new")


async def says_what_is_lost(running: "asyncio.Task[None]") -> None:
    with pytest.raises(LogTruncated, match=f"{DAILY_SUMMARY.topic}/0 from offset 3 to 5"):
        async with asyncio.timeout(PATIENCE_S):
            await running


def accept_all(system: System, count: int = 2) -> None:
    arguments = ["--kafka", system.bootstrap, "--postgres", system.dsn, "--yes"]
    accepted = CliRunner().invoke(accept_loss, arguments, catch_exceptions=False)
    assert accepted.exit_code == 0, accepted.output
    assert f"{counted(count, 'partition')} accepted" in accepted.output


def test_the_migration_is_waited_for(
    broker: EmbeddedKafka, fresh_database: str, caplog: pytest.LogCaptureFixture
):
    async def run() -> None:
        system = System(broker.start(), fresh_database)
        ends = await system.write(day("wait", "2026-01-01"))
        async with system.projector():

            async def has_said() -> bool:
                return "headwater migrate" in caplog.text

            await system.until(has_said)
            await asyncio.to_thread(migrate, fresh_database, lambda _: None)
            await system.until_applied(ends)

    asyncio.run(run())


def test_no_kafka_is_waited_for(migrated: str, caplog: pytest.LogCaptureFixture):
    def said() -> list[str]:
        return [r.message for r in caplog.records if r.name == "headwater.projector"]

    async def run() -> None:
        stop = asyncio.Event()
        projecting = run_projector(
            cluster=Cluster("127.0.0.1:1"),
            dsn=migrated,
            clock=lambda: NOW_MS,
            detector=truncation,
            stop=stop,
            retention=KEEP_FOREVER,
        )
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(projecting)
            await until(said)
            # It tries again, and does not say so.
            await asyncio.sleep(1)
            stop.set()

    asyncio.run(run())
    assert len(said()) == 1
    assert "expected Kafka at 127.0.0.1:1" in said()[0]


def test_a_broker_that_restarts_is_found_again(broker: EmbeddedKafka, migrated: str):
    async def scenario(system: System) -> None:
        async with system.projector():
            await system.until_applied(await system.write(day("again", "2026-01-01")))
            await asyncio.to_thread(broker.stop)
            await asyncio.to_thread(broker.start)
            await system.until_applied(await system.write(day("again", "2026-01-02")))

    in_a_system(broker, migrated, scenario)


# --- the transaction itself: what a projector that lost its partitions may still try --------------


def test_a_batch_is_never_applied_twice_nor_out_of_order(migrated: str):
    async def scenario() -> None:
        position = (DAILY_SUMMARY.topic, 0)
        old = batch(
            [day("z", "2026-01-01", steps=1), day("z", "2026-01-02", steps=1)], {position: 0}
        )
        new = batch([day("z", "2026-01-01", steps=2)], {position: 2})
        owner, zombie = (
            Store(migrated, projection=DELIVERIES, clock=lambda: NOW_MS) for _ in range(2)
        )
        try:
            for store in (owner, zombie):
                assert (await store.offsets([position])) == {position: 0}
            admitted, _ = await zombie.apply(new)
            assert admitted.behind == {position}
            await asyncio.gather(owner.apply(old), zombie.apply(old))
            await owner.apply(new)
            admitted, _ = await zombie.apply(old)
            assert admitted.records == []
            # A batch that overlaps what is there leaves out just that.
            admitted, _ = await zombie.apply(
                batch([*old.records, *new.records, day("z", "2026-01-03")], {position: 0})
            )
            assert [record.offset for record in admitted.records or ()] == [3]
            assert await owner.offsets([position]) == {position: 4}
        finally:
            await owner.close()
            await zombie.close()

    asyncio.run(scenario())
    with psycopg.connect(migrated) as connection:
        result = connection.execute("select steps from daily_summary order by datetime").fetchall()
    assert result == [(2,), (1,), (None,)]


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
