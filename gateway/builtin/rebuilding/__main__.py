"""Carry out the requested phase of one rebuild, and exit.

A restarted process continues where the previous one stopped: the stores contain their offsets, and
Postgres the number of rows that were published to owners.
"""

import asyncio
import logging
import os
import sys
from typing import Final, NoReturn

import uvloop

from headwater.gateway.builtin.rebuilding.tables import TableRebuild
from headwater.gateway.builtin.rebuilding.workflows import WorkflowRebuild
from headwater.gateway.settings.addresses import dsn_of
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.environment import load_settings
from headwater.gateway.settings.process import begin_service
from headwater.gateway.settings.settings import Settings
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.rebuilds.rebuilds import Rebuild, RebuildWork, find
from headwater.projections.workflows.history import PROJECTION as WORKFLOWS
from headwater.projections.workflows.plan import workflows_kept
from headwater.schemas.errors import HeadwaterError
from headwater.schemas.installed_tables import TABLE_BY_NAME
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
    table = TABLE_BY_NAME.get(row.projection)
    created: TableRebuild | WorkflowRebuild
    if table is not None:
        created = TableRebuild(settings, table, row, work)
    elif row.projection == WORKFLOWS:
        projection = workflows_kept(settings.kept)
        created = WorkflowRebuild(cluster_of(settings), dsn_of(settings), row, work, projection)
    else:
        await work.end("failed", f"expected a table or {WORKFLOWS}, found {row.projection}")
        return
    async with created as rebuild:
        match row.state:
            case "building":
                await rebuild.build()
            case "switching":
                await rebuild.switch()
            case "switching_back":
                await rebuild.switch_back()
            case _:
                """The phase is complete."""


async def _exit_with_parent(parent: int) -> NoReturn:
    """Exit when the parent process has exited: the next projector starts another process."""
    while True:
        await asyncio.sleep(_ORPHANED_EVERY_S)
        if os.getppid() != parent:
            os._exit(os.EX_TEMPFAIL)


def main() -> NoReturn:
    """Run the rebuild with the id in the command-line argument."""
    settings = load_settings()
    begin_service(settings)
    collect_seldom()
    sys.exit(uvloop.run(_run(settings, sys.argv[1])))


if __name__ == "__main__":
    main()
