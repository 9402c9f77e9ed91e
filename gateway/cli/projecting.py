"""`headwater project`: the projector and its rebuilds, from start to the signal that stops them."""

import asyncio
import logging
import signal
from collections.abc import Callable
from importlib.metadata import version

import uvloop

from headwater.gateway.builtin.auditing import run_auditor
from headwater.gateway.builtin.rebuilding.watching import carry_out_rebuilds
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.database import dsn_of
from headwater.gateway.settings.process import begin_service, process_name
from headwater.gateway.settings.settings import Settings
from headwater.monitoring.endpoint import monitoring
from headwater.monitoring.monitor import OK, Monitor
from headwater.projections.catalogue import run_projector
from headwater.streams.kafka import truncation
from headwater.streams.kafka.growth_marks import read_growths
from headwater.streams.kafka.membership import system_membership
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.kafka.skips import load_skips
from headwater.streams.kafka.topics import check_topics
from headwater.streams.loop_watch import measured_loop_watch
from headwater.streams.process_tuning import collect_seldom

log = logging.getLogger(__name__)


def run_projection(settings: Settings, *, clock: Callable[[], int]) -> None:
    """Run the projector until SIGTERM or SIGINT."""
    begin_service(settings, "projector")
    with monitoring(settings.monitored_at(), "projector", version("headwater")) as monitor:
        uvloop.run(_project(settings, clock, monitor))


async def _project(settings: Settings, clock: Callable[[], int], monitor: Monitor) -> None:
    monitor.follow_loop()
    cluster = cluster_of(settings)
    await check_topics(cluster)
    await load_skips(cluster)
    waiting = Retrying(log, "waiting for Kafka to learn how the topics got more partitions")
    growths = await waiting.until_done(lambda: read_growths(cluster))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    collect_seldom()
    name = f"projector {process_name()}"
    with measured_loop_watch().watching(), system_membership(cluster, name) as membership:
        membership.start()
        tasks = [asyncio.create_task(carry_out_rebuilds(settings, stop, dsn_of))]
        if settings.auditor:
            tasks.append(asyncio.create_task(run_auditor(settings, stop, clock)))
        try:
            await run_projector(
                cluster=cluster,
                dsn=dsn_of(settings),
                topic_prefix=settings.topic_prefix,
                growths=growths,
                clock=clock,
                detector=truncation,
                stop=stop,
                retention=settings.kept,
                monitor=monitor,
            )
        finally:
            stop.set()
            await asyncio.gather(*tasks)


# -- `headwater auditor`


def run_auditing(settings: Settings, *, clock: Callable[[], int]) -> None:
    """Run the auditor until SIGTERM or SIGINT."""
    begin_service(settings, "auditor")
    with monitoring(settings.monitored_at(), "auditor", version("headwater")) as monitor:
        uvloop.run(_audit(settings, clock, monitor))


async def _audit(settings: Settings, clock: Callable[[], int], monitor: Monitor) -> None:
    monitor.follow_loop()
    cluster = cluster_of(settings)
    await check_topics(cluster)
    await load_skips(cluster)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    name = f"auditor {process_name()}"
    with measured_loop_watch().watching(), system_membership(cluster, name) as membership:
        membership.start()
        # Another auditor may work, and this one stand by: both are fine.
        monitor.ready_when(lambda: {"auditor": OK})
        await run_auditor(settings, stop, clock)
