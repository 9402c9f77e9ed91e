"""Carry out the requested phase of one rebuild, and exit.

A restarted process continues where the previous one stopped: the stores contain their offsets, and
Postgres the number of rows that were published to owners.
"""

import asyncio
import logging
import os
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final, LiteralString, NoReturn

import uvloop

from headwater.gateway.builtin.rebuilding.comparing import Rebuilding, RightRows
from headwater.gateway.builtin.rebuilding.progress import TableProgress
from headwater.gateway.builtin.rebuilding.projected import ProjectedRows
from headwater.gateway.builtin.rebuilding.refolded import RefoldedRows
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.database import dsn_of
from headwater.gateway.settings.environment import load_settings
from headwater.gateway.settings.process import begin_service
from headwater.gateway.settings.settings import Settings
from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.rebuilds.rebuilds import Rebuild, RebuildWork, find
from headwater.projections.rebuilds.shadow_table import ShadowTable
from headwater.projections.rebuilds.shadow_tables import ShadowTables
from headwater.projections.workflows.history import PROJECTION as WORKFLOWS
from headwater.projections.workflows.plan import workflows_kept
from headwater.schemas.errors import HeadwaterError
from headwater.schemas.installed_tables import TABLE_BY_NAME
from headwater.schemas.tables import Table
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.readers import Offsets
from headwater.streams.process_tuning import collect_seldom

log = logging.getLogger("headwater.rebuild")

_ORPHANED_EVERY_S: Final = 1.0


async def _run(settings: Settings, rebuild_id: str) -> int:
    watching = asyncio.create_task(_exit_with_parent(os.getppid()))
    reader = await PooledReader(dsn_of(settings)).open()
    work = RebuildWork(dsn_of(settings), rebuild_id)
    try:
        if not await work.begin():
            return os.EX_TEMPFAIL  # Another projector carries it out.
        row = await find(reader, rebuild_id)
        if row is not None:
            await _carry_out(settings, row, work)
    except HeadwaterError as error:
        log.warning("%s", error.message)
        return os.EX_TEMPFAIL
    finally:
        watching.cancel()
        await work.close()
        await reader.close()
    return os.EX_OK


async def _carry_out(settings: Settings, row: Rebuild, work: RebuildWork) -> None:
    async with AsyncExitStack() as exits:
        appender = Appender(cluster=cluster_of(settings), client_id="headwater-rebuild")
        exits.push_async_callback(appender.stop)
        table = TABLE_BY_NAME.get(row.projection)
        if table is not None:
            tables, rows = await _of_table(settings, table, row, work, appender, exits)
        elif row.projection == WORKFLOWS:
            tables, rows = _of_workflows(settings, row, work, exits)
        else:
            await work.end("failed", f"expected a table or {WORKFLOWS}, found {row.projection}")
            return
        rebuilding = Rebuilding(row, work, tables, rows, appender)
        match row.state:
            case "building":
                await rebuilding.compare()
            case "switching":
                await rebuilding.switch()
            case "switching_back":
                await rebuilding.switch_back()
            case _:
                """The phase is complete."""


def _of_workflows(
    settings: Settings, row: Rebuild, work: RebuildWork, exits: AsyncExitStack
) -> tuple[ShadowTables, RightRows]:
    projection = workflows_kept(settings.kept)
    # A rebuild applies the setting of retention to runs that ended before it was set.
    neutral: dict[str, LiteralString] = {"retention_until": "null"} if row.is_verification else {}
    tables = ShadowTables(work.connection, row.id, topics=projection.topics, neutral=neutral)
    rows = ProjectedRows(cluster_of(settings), dsn_of(settings), projection, tables, work)
    exits.push_async_callback(rows.close)
    return tables, rows


async def _of_table(
    settings: Settings,
    table: Table,
    row: Rebuild,
    work: RebuildWork,
    appender: Appender,
    exits: AsyncExitStack,
) -> tuple[ShadowTables, RightRows]:
    tables = ShadowTable(work.connection, row.id, table, work.connect)
    offsets = Offsets(cluster_of(settings), settings.app_id)
    exits.push_async_callback(offsets.stop)
    partitions = await appender.partitions(WEBHOOKS)
    progress = TableProgress(offsets, tables, work, table.topic, partitions)
    # No reader of sync follows the shadow table.
    projection = replace(DELIVERIES, topics=(table.topic,), is_synced=False)
    rows: ProjectedRows | RefoldedRows
    if row.is_verification:
        rows = ProjectedRows(
            cluster_of(settings), dsn_of(settings), projection, tables, work, progress
        )
    else:
        rows = RefoldedRows(
            settings=settings,
            table=table,
            projection=projection,
            tables=tables,
            row=row,
            work=work,
            progress=progress,
        )
        await rows.open(partitions)
    exits.push_async_callback(rows.close)
    return tables, rows


async def _exit_with_parent(parent: int) -> NoReturn:
    """Exit when the parent process has exited: the next projector starts another process."""
    while True:
        await asyncio.sleep(_ORPHANED_EVERY_S)
        if os.getppid() != parent:
            os._exit(os.EX_TEMPFAIL)


def main() -> NoReturn:
    """Run the rebuild with the id in the command-line argument."""
    settings = load_settings()
    begin_service(settings, "rebuild")
    collect_seldom()
    sys.exit(uvloop.run(_run(settings, sys.argv[1])))


if __name__ == "__main__":
    main()
