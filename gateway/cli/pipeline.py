"""`headwater worker`: the pipeline worker, from start to the signal that stops it."""

import asyncio
from collections.abc import Callable
from functools import partial
from importlib.metadata import version

from headwater.gateway.cli.starting import measured_stores, pipeline_rules
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.process import begin_service, process_name
from headwater.gateway.settings.settings import Settings
from headwater.gateway.settings.sources import sources_of
from headwater.monitoring.endpoint import monitoring
from headwater.monitoring.monitor import Monitor
from headwater.processors.providers.provider import Placement
from headwater.processors.sources import providers_of
from headwater.streams.evaluation.evaluator import (
    DELIVERY_LIMITS,
    EvaluatorProcess,
    started_evaluator,
)
from headwater.streams.kafka.membership import system_membership
from headwater.streams.kafka.skips import load_skips
from headwater.streams.kafka.topics import check_topics
from headwater.streams.pipeline.deduplication import Intake
from headwater.streams.pipeline.worker import run_worker


def run_pipeline(settings: Settings, *, clock: Callable[[], int]) -> None:
    """Run the pipeline until SIGTERM or SIGINT."""
    begin_service(settings, "pipeline")
    with monitoring(settings.monitored_at(), "pipeline", version("headwater")) as monitor:
        _run(settings, clock, monitor)


def _run(settings: Settings, clock: Callable[[], int], monitor: Monitor) -> None:
    cluster = cluster_of(settings)
    rules = pipeline_rules(settings)
    make_intake = partial(
        Intake,
        placement=Placement(providers_of(sources_of(settings)), settings.user_prefix),
        park_for_ms=settings.park_for_s * 1000,
        rules=rules,
        evaluator=started_evaluator(DELIVERY_LIMITS) if rules else EvaluatorProcess(),
    )
    asyncio.run(check_topics(cluster))
    asyncio.run(load_skips(cluster))
    with system_membership(cluster, f"pipeline {process_name()}") as membership:
        membership.start()
        run_worker(
            cluster=cluster,
            app_id=settings.app_id,
            make_intake=make_intake,
            stores=measured_stores(settings, clock, monitor),
            joined=membership.joined,
            member=settings.member or None,
            clock=clock,
            monitor=monitor,
        )
