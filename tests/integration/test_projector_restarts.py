"""The projector on a real Kafka and a real Postgres: rows arrive, once, through every trouble.

The broker is this module's own: tests restart it, and have it lose records. All of them share its
topics; each has a database of its own, so each reads them from the beginning.
"""

import asyncio
import logging
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from click.testing import CliRunner

from headwater.gateway.cli.output import counted
from headwater.gateway.cli.topic_repair import accept_loss
from headwater.monitoring.monitor import Monitor
from headwater.processors.runs.durations import KEEP_FOREVER
from headwater.projections import catalogue
from headwater.projections.catalogue import run_projector
from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.errors import LogTruncated
from headwater.projections.postgres.migrate import migrate
from headwater.projections.projector import consumers
from headwater.projections.projector import projector as projecting
from headwater.projections.projector.store import Store
from headwater.projections.workflows.plan import WORKFLOWS
from headwater.schemas.tables import DAILY_SUMMARY
from headwater.schemas.topics import WORKFLOW_HISTORY
from headwater.streams.kafka import truncation
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import Offsets
from tests.cut_logs import cut
from tests.integration.projecting import (
    NOW_MS,
    PATIENCE_S,
    Ends,
    System,
    in_a_system,
    make_topics,
    with_topics,
)
from tests.integration.written import batch, day
from tests.throwaway_kafka import ThrowawayKafka
from tests.waiting import until


@pytest.fixture(scope="module")
def broker(scratch: Path) -> Iterator[ThrowawayKafka]:
    with with_topics(scratch / "kafka of restarts") as broker:
        yield broker


def test_a_restart_continues_where_postgres_is(broker: ThrowawayKafka, migrated: str):
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


def test_a_second_projector_takes_its_share(broker: ThrowawayKafka, migrated: str):
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
    broker: ThrowawayKafka, migrated: str, caplog: pytest.LogCaptureFixture
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
    broker: ThrowawayKafka, migrated: str, caplog: pytest.LogCaptureFixture
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


def test_a_database_that_went_back_is_filled_again(broker: ThrowawayKafka, migrated: str):
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
    broker: ThrowawayKafka, migrated: str, monkeypatch: pytest.MonkeyPatch
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
    broker: ThrowawayKafka,
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
                monitor=Monitor(),
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


def test_a_log_that_is_cut_while_it_is_read_is_said(broker: ThrowawayKafka, migrated: str):
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

    in_a_system(broker, migrated, scenario)


@pytest.mark.parametrize("same", [True, False], ids=["the same", "another"])
def test_a_log_that_was_cut_and_is_longer_again_is_said_and_read_on_once_that_is_accepted(
    broker: ThrowawayKafka, migrated: str, same: bool
):
    users = f"lost by {same}", f"kept by {same}"

    async def scenario(system: System) -> None:
        overtake = overtaken if same else overtaken_meanwhile
        lost_from, ends = await overtake(system, broker, *users)
        await asyncio.to_thread(accept_all, system, 1)
        async with system.projector():
            await system.until_applied(ends)
        query = "select steps from daily_summary where user_id = %(user)s order by steps"
        assert await system.rows(query, user=users[1]) == [(n,) for n in range(1, 7)]
        accepted = f"lost from Kafka, and accepted: {lost(lost_from)}"
        assert await system.rows("select error from projection_errors") == [(accepted,)]

    in_a_system(broker, migrated, scenario)


async def overtaken(
    system: System, broker: ThrowawayKafka, before: str, after: str
) -> tuple[int, Ends]:
    """A projector whose position is behind the new end when it fetches again."""
    projector, where = system.make_projector(), TopicPartition(DAILY_SUMMARY.topic, 0)
    running = asyncio.create_task(projector.run(asyncio.Event()))
    lost_from = await half_of_six_days(system, before)
    assert projector._consumer is not None
    projector._consumer.pause(where)
    ends = await lose_from(lost_from, system, broker, after)
    projector._consumer.resume(where)
    await says_what_is_lost(running, lost_from)
    return lost_from, ends


async def overtaken_meanwhile(
    system: System, broker: ThrowawayKafka, before: str, after: str
) -> tuple[int, Ends]:
    """A projector that goes on where another was."""
    async with system.projector():
        lost_from = await half_of_six_days(system, before)
    ends = await lose_from(lost_from, system, broker, after)
    running = asyncio.create_task(system.make_projector().run(asyncio.Event()))
    await says_what_is_lost(running, lost_from)
    return lost_from, ends


async def six_days(system: System, user: str) -> Ends:
    """Write days of a user, each in a batch of its own."""
    return [await system.write(day(user, f"2026-01-{n:02}", steps=n)) for n in range(1, 7)][-1]


async def half_of_six_days(system: System, user: str) -> int:
    """Have six days projected, and return the offset of the fourth."""
    ends = await six_days(system, user)
    await system.until_applied(ends)
    return ends[DAILY_SUMMARY.topic, 0] - 3


async def lose_from(offset: int, system: System, broker: ThrowawayKafka, user: str) -> Ends:
    """Have the broker lose the last three of six days, and take six of another user."""
    await asyncio.to_thread(broker.kill)
    cut(broker, DAILY_SUMMARY.topic, 0, offset)
    await asyncio.to_thread(broker.start)
    return await six_days(system, user)


def lost(first: int) -> str:
    return f"{DAILY_SUMMARY.topic}/0 from offset {first} to {first + 2}"


async def says_what_is_lost(running: "asyncio.Task[None]", first: int) -> None:
    with pytest.raises(LogTruncated, match=lost(first)):
        async with asyncio.timeout(PATIENCE_S):
            await running


def accept_all(system: System, count: int = 2) -> None:
    # The command has an entry in the audit log.
    asyncio.run(make_topics(system.bootstrap, "audit"))
    arguments = ["--kafka", system.bootstrap, "--postgres", system.dsn, "--yes"]
    accepted = CliRunner().invoke(accept_loss, arguments, catch_exceptions=False)
    assert accepted.exit_code == 0, accepted.output
    assert f"{counted(count, 'partition')} accepted" in accepted.output


def test_the_migration_is_waited_for(
    broker: ThrowawayKafka, fresh_database: str, caplog: pytest.LogCaptureFixture
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
            monitor=Monitor(),
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


def test_a_projector_that_waits_for_its_topics_ends_at_once(
    migrated: str, monkeypatch: pytest.MonkeyPatch
):
    async def scenario() -> None:
        stop, waits = asyncio.Event(), asyncio.Event()

        class Waiting(AIOKafkaConsumer):
            async def start(self) -> None:
                waits.set()
                await asyncio.Event().wait()

        monkeypatch.setattr(consumers, "AIOKafkaConsumer", Waiting)
        projector = System("127.0.0.1:1", migrated).make_projector()
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            tasks.create_task(projector.run(stop))
            await waits.wait()
            stop.set()

    asyncio.run(scenario())


def test_a_broker_that_restarts_is_found_again(broker: ThrowawayKafka, migrated: str):
    async def scenario(system: System) -> None:
        async with system.projector():
            await system.until_applied(await system.write(day("again", "2026-01-01")))
            await asyncio.to_thread(broker.stop)
            await asyncio.to_thread(broker.start)
            await system.until_applied(await system.write(day("again", "2026-01-02")))

    in_a_system(broker, migrated, scenario)


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
