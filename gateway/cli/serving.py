"""`headwater serve`: the gateway, from start to the signal that stops it."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvloop

from headwater.gateway.api.app import Ports, create_app, end_streams
from headwater.gateway.api.console.oidc import OidcSignIn
from headwater.gateway.api.front import front_of
from headwater.gateway.api.group_metrics import MetricsFolder
from headwater.gateway.api.listening import listen
from headwater.gateway.api.server import serve as serve_app
from headwater.gateway.api.wiping import Wiping
from headwater.gateway.api.workflows.authorization import load_hooks
from headwater.gateway.api.workflows.routes import OUTCOME_TIMEOUT_S, WorkflowPorts
from headwater.gateway.api.workflows.runs.run_service import RunPorts
from headwater.gateway.builtin.blobs.folder import blobs_at
from headwater.gateway.cli.lag_groups import consumer_groups
from headwater.gateway.cli.starting import rules_of
from headwater.gateway.cli.user_tokens import for_users
from headwater.gateway.client.requests import buffered_random, ulid_source
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.database import dsn_of
from headwater.gateway.settings.process import (
    GroupProcess,
    begin_service,
    group_process,
    process_name,
)
from headwater.gateway.settings.settings import Settings
from headwater.gateway.settings.sources import sources_of, sources_with_secrets
from headwater.monitoring.catalog import BUILD_INFO
from headwater.processors.kafka_sources import KafkaSource
from headwater.processors.providers.provider import Placement
from headwater.processors.sources import AnySource, kafka_sources, providers_of
from headwater.projections.deliveries.queries import Reader
from headwater.projections.gateway_state import IdempotencyKeys
from headwater.projections.postgres.schema_prefix import check_prefix
from headwater.projections.projector.growth import topic_growths
from headwater.projections.workflows.queries import Workflows
from headwater.projections.workflows.runs import Runs
from headwater.projections.workflows.world import WorldEntries
from headwater.streams.auditor.report_log import ReportLog
from headwater.streams.clock import monotonic
from headwater.streams.evaluation.evaluator import DELIVERY_LIMITS, started_evaluator
from headwater.streams.kafka.api_key_log import ApiKeyLog
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.endpoint_log import EndpointLog
from headwater.streams.kafka.lags import read_lags
from headwater.streams.kafka.membership import running_workers, system_membership
from headwater.streams.kafka.schema_registry import SchemaRegistry
from headwater.streams.kafka.topics import check_topics
from headwater.streams.pipeline.reprocessing import DeadLetters
from headwater.streams.pipeline.request_logs import AnswerLog, AuditLog
from headwater.streams.pipeline.topic_consumer import TopicConsumer
from headwater.streams.pipeline.webhook_log import WebhookLog
from headwater.streams.pipeline.wiping import WipeLog
from headwater.streams.process_tuning import run_as_batch
from headwater.streams.workflows.client import WorkflowClient
from headwater.streams.workflows.deployment_log import DefinitionLog, DeploymentLog
from headwater.streams.workflows.history_topic import RunReader


def run_gateway(settings: Settings, *, clock: Callable[[], int]) -> None:
    """Accept webhooks and serve requests until SIGTERM or SIGINT."""
    begin_service(settings, "gateway")
    BUILD_INFO.replace({("gateway", version("headwater")): 1})
    run_as_batch()
    uvloop.run(_serve(settings, clock))


async def _serve(settings: Settings, clock: Callable[[], int]) -> None:
    group = group_process()
    listening = None if group.shares_port else listen(settings.host, settings.port)
    cluster = cluster_of(settings)
    topics = kafka_sources(sources_of(settings))
    sources: list[AnySource] = [*sources_with_secrets(settings, os.environ), *topics]
    reader = Reader(dsn_of(settings))
    new_id = ulid_source(clock, os.urandom)
    ports = Ports(
        log=WebhookLog(
            cluster=cluster,
            append_timeout_s=settings.append_timeout_s,
            placement=Placement(providers_of(sources), settings.user_prefix),
            clock=clock,
            growths=partial(topic_growths, reader),
        ),
        answers=AnswerLog(cluster=cluster),
        audit=AuditLog(cluster=cluster, append_timeout_s=settings.append_timeout_s),
        replays=DeadLetters(cluster=cluster, clock=clock),
        reader=reader,
        workflows=_workflow_ports(settings, cluster, reader, clock, new_id),
        users=for_users(settings),
        wiping=Wiping(
            log=WipeLog(cluster=cluster, clock=clock, topics=[source.topic for source in topics]),
            blobs=blobs_at(settings.blobs_at),
            new_id=new_id,
        ),
        api_keys=ApiKeyLog(cluster=cluster, client_id="headwater-gateway-keys"),
        endpoints=EndpointLog(cluster=cluster, client_id="headwater-gateway-endpoints"),
        auditor=ReportLog(cluster, "headwater-gateway-auditor"),
        draw=os.urandom,
        clock=clock,
        new_request_id=ulid_source(clock, buffered_random(os.urandom)),
        metrics_folder=_metrics_folder(group),
        read_lags=partial(read_lags, cluster, consumer_groups(settings, topics)),
        oidc=_oidc(settings, clock),
    )
    app = create_app(settings, sources, ports)
    # Deliveries are accepted at once, also without Kafka, in schemas that all releases read.
    with system_membership(cluster, f"gateway {process_name()}") as membership:
        membership.start()
        # Not earlier: connections would wait for this process while others are idle.
        listening = listening or listen(settings.host, settings.port, shared=True)
        serving = serve_app(front_of(app), listening, end_streams=lambda: end_streams(app))
        async with consuming(settings, topics, ports, cluster):
            prefix = check_prefix(dsn_of(settings), settings.topic_prefix)
            await serve_while_safe([check_topics(cluster), prefix], serving)


@asynccontextmanager
async def consuming(
    settings: Settings, sources: Sequence[KafkaSource], ports: Ports, cluster: Cluster
) -> AsyncGenerator[None]:
    """Consume the topics of sources in the background while the context is open."""
    avro = any(source.format == "avro" for source in sources)
    registry = SchemaRegistry(settings.schema_registry) if avro else None
    evaluates = any(located.expression for source in sources for located in source.fields.values())
    evaluator = started_evaluator(DELIVERY_LIMITS) if evaluates else None
    consumers = [
        TopicConsumer(
            source,
            cluster=cluster,
            group=f"{settings.app_id}-source-{source.name}",
            append=ports.log.append,
            answered=ports.answers.record,
            registry=registry if source.format == "avro" else None,
            evaluator=evaluator,
            clock=ports.clock,
        )
        for source in sources
    ]
    tasks = [asyncio.create_task(consumer.run()) for consumer in consumers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if registry is not None:
            await registry.stop()
        if evaluator is not None:
            evaluator.close()


def _oidc(settings: Settings, clock: Callable[[], int]) -> OidcSignIn | None:
    if settings.oidc is None:
        return None
    return OidcSignIn(settings.oidc, draw=os.urandom, clock=clock, steady_s=monotonic)


def _metrics_folder(group: GroupProcess) -> MetricsFolder | None:
    return (
        MetricsFolder(Path(group.metrics), os.getpid(), time.time_ns()) if group.metrics else None
    )


def _workflow_ports(
    settings: Settings,
    cluster: Cluster,
    reader: Reader,
    clock: Callable[[], int],
    new_id: Callable[[], str],
) -> WorkflowPorts:
    return WorkflowPorts(
        commands=WorkflowClient(
            cluster=cluster,
            client_id="headwater-gateway",
            timeout_s=OUTCOME_TIMEOUT_S,
            clock=clock,
            new_id=new_id,
        ),
        definitions=DefinitionLog(cluster=cluster, client_id="headwater-gateway-graphs"),
        run_ports=RunPorts(
            rows=Runs(reader),
            keys=IdempotencyKeys(reader),
            deployments=DeploymentLog(cluster=cluster, client_id="headwater-gateway-deployments"),
            project_id=settings.project,
        ),
        world=WorldEntries(reader),
        workflows=Workflows(reader),
        runs=RunReader(cluster),
        hooks=load_hooks(settings.workflow_hooks),
        workers=partial(running_workers, cluster),
        new_id=new_id,
        clock=clock,
        rules=rules_of(settings),
    )


async def serve_while_safe(
    checks: Iterable[Coroutine[Any, Any, None]], serving: Coroutine[Any, Any, None]
) -> None:
    """Serve, also while Kafka or Postgres is unavailable; exit when a check fails.

    Args:
        checks: Each raises an error if serving is not safe, such as with topics that lose data, or
            with rows of another project.
        serving: Serves until SIGTERM.
    """

    def exit_if_unsafe(checking: asyncio.Task[None]) -> None:
        if not checking.cancelled() and checking.exception():
            signal.raise_signal(signal.SIGTERM)

    tasks = [asyncio.create_task(check) for check in checks]
    for task in tasks:
        task.add_done_callback(exit_if_unsafe)
    await serving
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
