"""All projections, and the function that runs them."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from headwater.monitoring.monitor import Monitor
from headwater.processors.runs.durations import Retention
from headwater.projections.api_keys import API_KEYS
from headwater.projections.audit import AUDIT
from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.deployments import DEPLOYMENTS, GRAPHS
from headwater.projections.errors import LogTruncated
from headwater.projections.postgres.schema_prefix import Growths, bind_prefix
from headwater.projections.postgres.table_ddl import make_tables
from headwater.projections.projector.consumers import Cluster
from headwater.projections.projector.projector import Projector
from headwater.projections.projector.store import Store
from headwater.projections.projector.truncation import TruncationDetector, pause
from headwater.projections.workflows.plan import WORKFLOWS, workflows_kept
from headwater.schemas.errors import StoreUnavailable

_LOG: Final = logging.getLogger("headwater.projector")
_RETRY_S: Final = 1.0
#: How long a projection waits when its topic was truncated, until an operator decides.
_TRUNCATED_S: Final = 30.0

#: All projections.
PROJECTIONS: Final = (DELIVERIES, WORKFLOWS, GRAPHS, DEPLOYMENTS, API_KEYS, AUDIT)


async def run_projector(  # noqa: PLR0913, chosen by the composition root
    *,
    cluster: Cluster,
    dsn: str,
    topic_prefix: str = "",
    growths: Growths = (),
    clock: Callable[[], int],
    detector: TruncationDetector,
    stop: asyncio.Event,
    retention: Retention,
    monitor: Monitor,
) -> None:
    """Run all projections concurrently until `stop` is set.

    Args:
        cluster: The cluster to read.
        dsn: The database to write.
        topic_prefix: Prefix of the topics in that cluster.
        growths: How these have got more partitions.
        clock: Returns Unix milliseconds.
        detector: Detects that Kafka lost the end of a log.
        stop: Ends the projections.
        retention: How long ended workflow instances are kept.
        monitor: Reports the state of every projection.

    Raises:
        SchemaTaken: The schema has tables of another program, or rows of another prefix.
        TableUnfit: A table of a provider does not fit its declaration.
    """
    await _prepare(dsn, topic_prefix, growths, stop)
    projectors = [
        Projector(
            cluster=cluster,
            store=Store(dsn, projection=projection, clock=clock),
            clock=clock,
            detector=detector,
            log=_LOG if projection is DELIVERIES else _LOG.getChild(projection.name),
            projection=projection,
        )
        for projection in (
            workflows_kept(retention) if projection is WORKFLOWS else projection
            for projection in PROJECTIONS
        )
    ]
    for projector in projectors:
        projector.progress.report_to(monitor)
    running = [asyncio.create_task(_run(projector, stop)) for projector in projectors]
    try:
        await asyncio.gather(*running)
    finally:
        # If one failed, stop the others, too.
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _run(projector: Projector, stop: asyncio.Event) -> None:
    """Run one projection. While its topic is truncated, only this one waits."""
    while not stop.is_set():
        try:
            await projector.run(stop)
        except LogTruncated as error:
            _LOG.error("%s", error.message)
            await pause(stop, _TRUNCATED_S)


async def _prepare(dsn: str, topic_prefix: str, growths: Growths, stop: asyncio.Event) -> None:
    """Create the tables of installed packages, and check the prefix; wait for Postgres."""
    logged = ""
    while not stop.is_set():
        try:
            await asyncio.to_thread(make_tables, dsn, _LOG.info)
            await bind_prefix(dsn, topic_prefix, growths)
        except StoreUnavailable as error:
            if error.message != logged:
                logged = error.message
                _LOG.warning("%s; trying again", logged)
            await pause(stop, _RETRY_S)
        else:
            return
