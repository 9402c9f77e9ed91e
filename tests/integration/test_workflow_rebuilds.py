"""The projection of workflows is made again beside the one that serves, switched to, and back."""

import asyncio
import dataclasses
from typing import Self

import psycopg

from headwater.gateway.builtin.rebuilding.comparing import Rebuilding
from headwater.gateway.builtin.rebuilding.projected import ProjectedRows
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.rebuilds.rebuilds import Rebuild, RebuildWork, begin, find, request_state
from headwater.projections.rebuilds.shadow_tables import ShadowTables
from headwater.schemas.history import (
    EventReceived,
    InstanceDeleted,
    LogWritten,
    RunStarted,
    TokenCompleted,
    TokensCreated,
)
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from tests.integration.test_workflow_projection import rows_of
from tests.integration.test_workflow_projection_kafka import (
    PROJECTION,
    System,
    first_half,
    second_half,
    step,
)
from tests.unit.projections.histories import START_MS, Log
from tests.unit.projections.workflow_fold import Row

CHANGED, GONE, NOBODY = "i2", "i3", "nobody"
ODD = '{"a":  1, "a": "\\u0000 \\ud800"}'


def history() -> Log:
    log = first_half()
    second_half(log)
    log.write("i6", LogWritten("info", "c", "m", ODD), EventReceived("e9", "odd", ODD, START_MS))
    log.write("odd", RunStarted(ODD, "s"))
    token = TokensCreated(0, 1, "start", None, None, "root", None, None, 0, 1, (), task="noop")
    log.write("odd", token, TokenCompleted(0, 1, ODD))
    log.write("i8", InstanceDeleted())
    return log


#: What an older release may have made otherwise: two steps and a line, a token, an instance, an
#: event.
MISTAKES = (
    ("update workflow_step set name = 'mistaken' where instance_id = %s", CHANGED),
    ("update workflow_log set message = 'it''s \\ \"so\"' where instance_id = %s", CHANGED),
    ("update workflow_token set result = null where instance_id = %s", "odd"),
    ("delete from workflow_instance where instance_id = %s", GONE),
    (
        """
        insert into workflow_event (
            workflow_name, instance_id, run_number, id, type, payload, sequence, created_at,
            "offset"
        )
        values ('order', %s, 0, 'e', 't', '"\\u0000"', 1, now(), 1)
        """,
        NOBODY,
    ),
)


def spoil(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        for query, instance_id in MISTAKES:
            connection.execute(query.encode(), [instance_id])


class Operator:
    """Asks for a rebuild and carries it out, as gateway and projector do."""

    def __init__(self, system: System) -> None:
        self.system = system

    async def __aenter__(self) -> Self:
        self.reader = await PooledReader(self.system.dsn).open()
        begun = await begin(self.reader, "r-1", "workflows")
        assert begun is not None
        self.found = begun
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.reader.close()

    async def carry_out(self, move: str) -> Rebuild:
        work = RebuildWork(self.system.dsn, self.found.id)
        try:
            assert await work.begin()
            projection, dsn = self.system.projection, self.system.dsn
            tables = ShadowTables(work.connection, self.found.id, topics=projection.topics)
            cluster = Cluster(self.system.bootstrap)
            rows = ProjectedRows(cluster, dsn, projection, tables, work)
            appender = Appender(cluster=cluster, client_id="test")
            await getattr(Rebuilding(self.found, work, tables, rows, appender), move)()
            await rows.close()
        finally:
            await work.close()
        return await self.state()

    async def state(self) -> Rebuild:
        self.found = found = await find(self.reader, self.found.id)
        assert found is not None
        return found

    async def verified(self, number: int) -> Rebuild:
        begun = await begin(self.reader, f"v-{number}", "workflows", verify=True)
        assert begun is not None
        before, self.found = self.found, begun
        result = await self.carry_out("compare")
        self.found = before
        return result

    async def asked(self, state: str, after: str, move: str) -> Rebuild:
        assert await request_state(self.reader, "r-1", state, after=(after,))
        await self.state()
        return await self.carry_out(move)


async def projected(system: System) -> None:
    running, stop = system.start()
    await system.until(system.all_is_applied)
    stop.set()
    await running


def kept_of(dsn: str, instance_id: str) -> int:
    with psycopg.connect(dsn) as connection:
        query = (
            "select count(*) from rebuild_rows where position(%s in convert_from(key, 'UTF8')) > 0"
        )
        ((count,),) = connection.execute(query, [f'"{instance_id}"']).fetchall()
        return int(count)


def of(instance_id: str, rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["instance_id"] == instance_id]


async def compared(operator: Operator) -> None:
    result = await operator.carry_out("compare")
    assert (result.state, result.applied) == ("compared", result.total)
    assert (result.added, result.removed, result.changed) == (1, 1, 4)
    (missing,) = [example for example in result.examples if example.kind == "added"]
    assert missing.key == {"workflow_name": "order", "instance_id": GONE}
    assert missing.columns["params"] == (None, '{"n": 3}')
    names = [example.columns["name"] for example in result.examples if "name" in example.columns]
    assert ["mistaken", "quote"] in [list(name) for name in names]


async def switched(system: System, operator: Operator, log: Log) -> None:
    """While the projector goes on; then more is written."""
    log.write(CHANGED, step("after the comparison", 3))
    await system.append(log)
    running, stop = system.start()
    assert (await operator.asked("switching", "compared", "switch")).state == "switched"
    await system.until(system.all_is_applied)
    assert rows_of(system.dsn) == log.fold().rows()
    log.write(CHANGED, LogWritten("info", "c", "later"))
    log.write(GONE, step("later", 4), partition=1)
    await system.append(log)
    await system.until(system.all_is_applied)
    stop.set()
    await running


async def switched_back(system: System, operator: Operator, spoilt: dict[str, list[Row]]) -> None:
    """Rows that have changed since the switch stay as they are."""
    before = rows_of(system.dsn)
    result = await operator.asked("switching_back", "switched", "switch_back")
    assert result.state == "switched_back"
    after = rows_of(system.dsn)
    names = {row["name"] for row in of(CHANGED, after["workflow_step"])}
    assert names == {"mistaken", "after the comparison"}
    assert after["workflow_instance"] == before["workflow_instance"]
    assert of(NOBODY, before["workflow_event"]) == []
    assert of(NOBODY, after["workflow_event"]) == of(NOBODY, spoilt["workflow_event"])


async def forgotten(system: System, log: Log) -> None:
    """What is kept of a rebuild goes with its instance."""
    assert kept_of(system.dsn, CHANGED) == 3
    log.write(CHANGED, InstanceDeleted())
    await system.append(log)
    await projected(system)
    assert kept_of(system.dsn, CHANGED) == 0


def test_rows_that_were_made_otherwise_are_found_put_right_and_put_back(kafka: str, migrated: str):
    projection = dataclasses.replace(PROJECTION, topics=("rebuilt-history",), group="rebuilt")
    system, log = System(kafka, migrated, projection), history()

    async def scenario() -> None:
        await system.make_topic()
        await system.append(log)
        await projected(system)
        assert rows_of(migrated) == log.fold().rows()
        spoil(migrated)
        spoilt = rows_of(migrated)
        async with Operator(system) as operator:
            await compared(operator)
            assert rows_of(migrated) == spoilt
            verified = await operator.verified(1)
            assert (verified.state, verified.version) == ("verified", None)
            assert (verified.added, verified.removed, verified.changed) == (1, 1, 4)
            assert rows_of(migrated) == spoilt
            await switched(system, operator, log)
            assert (await operator.verified(2)).examples == ()
            await switched_back(system, operator, spoilt)
            await forgotten(system, log)

    asyncio.run(scenario())
