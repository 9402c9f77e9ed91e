"""The projections that there are, and running all of them."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from headwater.processors.runs.retention import Retention
from headwater.projections.audit.plan import AUDIT
from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.deployments.plan import DEPLOYMENTS
from headwater.projections.graphs.plan import GRAPHS
from headwater.projections.postgres.making_tables import make_tables
from headwater.projections.projector.projector import Cluster, Projector, pause
from headwater.projections.projector.store import Store
from headwater.projections.workflows.plan import workflows_kept
from headwater.schemas.errors import StoreUnavailable

_LOG: Final = logging.getLogger("headwater.projector")
_RETRY_S: Final = 1.0

__all__ = ["run_projector"]


async def run_projector(
    *,
    cluster: Cluster,
    dsn: str,
    clock: Callable[[], int],
    stop: asyncio.Event,
    retention: Retention,
) -> None:
    """Runs every projection, side by side, until `stop` is set.

    Shape:  retention is of instances of workflows.

    Units:  the clock gives Unix milliseconds.
    Errors: LogTruncated; TableUnfit.
    """
    await _make_tables(dsn, stop)
    running = [
        asyncio.create_task(
            Projector(
                cluster=cluster,
                store=Store(dsn, projection=projection, clock=clock),
                clock=clock,
                log=_LOG if projection is DELIVERIES else _LOG.getChild(projection.name),
                projection=projection,
            ).run(stop)
        )
        for projection in (DELIVERIES, workflows_kept(retention), GRAPHS, DEPLOYMENTS, AUDIT)
    ]
    try:
        await asyncio.gather(*running)
    finally:
        # Where one gave up, the others would go on without it.
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _make_tables(dsn: str, stop: asyncio.Event) -> None:
    """Makes the tables of installed packages; waits for Postgres."""
    logged = ""
    while not stop.is_set():
        try:
            await asyncio.to_thread(make_tables, dsn, _LOG.info)
        except StoreUnavailable as error:
            if error.message != logged:
                logged = error.message
                _LOG.warning("%s; trying again", logged)
            await pause(stop, _RETRY_S)
        else:
            return
