"""The auditor with its dependencies, for `headwater auditor` and for the projector."""

import asyncio
import socket
from collections.abc import Callable

from headwater.gateway.builtin.row_comparison import RowComparison
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.database import dsn_of
from headwater.gateway.settings.settings import Settings
from headwater.gateway.settings.sources import sources_of
from headwater.processors.providers.provider import Placement
from headwater.processors.sources import providers_of
from headwater.projections.postgres.connections import PooledReader
from headwater.schemas.records import WebhookReceived
from headwater.streams.auditor.auditor import Auditor


async def run_auditor(settings: Settings, stop: asyncio.Event, clock: Callable[[], int]) -> None:
    """Verify the log until `stop` is set.

    Args:
        settings: The settings.
        stop: Ends it.
        clock: Returns Unix milliseconds.
    """
    cluster = cluster_of(settings)
    providers = providers_of(sources_of(settings))
    placement = Placement(providers, settings.user_prefix)

    def may_recur(delivery: WebhookReceived) -> bool:
        kind = placement.kind_of(delivery)
        return kind is not None and kind.latest is not None

    reader = PooledReader(dsn_of(settings))
    comparison = RowComparison(
        cluster=cluster,
        reader=reader,
        providers=providers,
        rows=settings.auditor_rows,
        clock=clock,
    )
    auditor = Auditor(
        cluster=cluster,
        group=settings.app_id,
        name=settings.member or socket.gethostname(),
        park_for_ms=settings.park_for_s * 1000,
        may_recur=may_recur,
        clock=clock,
        compare_rows=comparison.compare,
    )
    await reader.open()
    try:
        await auditor.run(stop)
    finally:
        await comparison.stop()
        await reader.close()
