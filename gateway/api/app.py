"""The HTTP application: its routes, and the lifecycle of its ports."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPMethod
from importlib.metadata import version
from typing import Final

from litestar import Litestar, Router, asgi, post
from litestar.exceptions import NotFoundException
from litestar.handlers import ASGIRouteHandler, BaseRouteHandler, HTTPRouteHandler
from litestar.openapi import OpenAPIConfig, ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components
from litestar.params import FromPath
from litestar.types import ASGIApp, Receive, Scope, Send

from headwater.gateway.api.admin import admin_routes
from headwater.gateway.api.api_keys import ApiKeyService, key_router
from headwater.gateway.api.audit import Auditing, attempt_operation
from headwater.gateway.api.audit_checkpoints import Checkpoints, appending_checkpoints
from headwater.gateway.api.audit_routes import RouteProblems, audit_router
from headwater.gateway.api.auditor import Signing, auditor_routes
from headwater.gateway.api.authentication import RECORD_REFUSED, WrongKeys
from headwater.gateway.api.authentication import STATE as WRONG_KEYS
from headwater.gateway.api.body_limits import READ_S, BodyReader, Budget
from headwater.gateway.api.builtin_routes import prune_routes, replay_routes
from headwater.gateway.api.console.api_client import ConsoleKeys
from headwater.gateway.api.console.oidc import OidcSignIn
from headwater.gateway.api.console.routes import Console
from headwater.gateway.api.console.sessions import SignIn
from headwater.gateway.api.deployments.assembly import deployment_routes
from headwater.gateway.api.endpoint_deliveries import EndpointDeliveries
from headwater.gateway.api.endpoint_routes import endpoint_router
from headwater.gateway.api.endpoints import EndpointService
from headwater.gateway.api.event_streams import EventStreams
from headwater.gateway.api.failures import Failures
from headwater.gateway.api.front import Home, add_headers, hosts_known, state_of
from headwater.gateway.api.group_metrics import MetricsFolder
from headwater.gateway.api.json_bodies import ANY_JSON, BodyKind, LimitedBodies
from headwater.gateway.api.key_guards import Callers, KeyGuard
from headwater.gateway.api.key_ring import key_ring_of
from headwater.gateway.api.monitoring import Metrics, health_routes
from headwater.gateway.api.openapi import SECURITY as KEYS
from headwater.gateway.api.openapi import responses_of
from headwater.gateway.api.operations import Operations
from headwater.gateway.api.ownership import UnexpectedHits, ownership_routers
from headwater.gateway.api.problems import HANDLERS, Problem
from headwater.gateway.api.quality import DataQuality
from headwater.gateway.api.rate_limits import RateLimits
from headwater.gateway.api.reads import read_routes
from headwater.gateway.api.rebuilds import rebuild_routes
from headwater.gateway.api.record_schemas import asyncapi_route, registry_routes
from headwater.gateway.api.refusals import Refusals, record_unmatched, refusal_recorder
from headwater.gateway.api.refused_keys import RefusedKeys, appending_refusals
from headwater.gateway.api.request_scope import AnyConnection, peer_resolver, whole_parameters
from headwater.gateway.api.system_metrics import ReadLags, SystemMetrics
from headwater.gateway.api.users.lab_reports import UploadLimits
from headwater.gateway.api.users.operator_routes import user_operation_routes
from headwater.gateway.api.users.ports import UserPorts, UserServices
from headwater.gateway.api.users.routes import user_routes
from headwater.gateway.api.webhooks import Accepted, Receiver
from headwater.gateway.api.wiping import Wiping, wipe_routes
from headwater.gateway.api.workflows.openapi import SECURITY
from headwater.gateway.api.workflows.query_service import StepTypes
from headwater.gateway.api.workflows.replay_gate import replay_gate
from headwater.gateway.api.workflows.routes import WorkflowPorts, WorkflowService
from headwater.gateway.api.workflows.swagger import SwaggerPage
from headwater.gateway.builtin.data_requests import IMPORT_NAMES
from headwater.gateway.settings.settings import Settings, revealed
from headwater.processors.sources import (
    AnySource,
    Source,
    providers_of,
    silence_limits,
    webhook_sources,
)
from headwater.projections.deliveries.imports import imports_of
from headwater.projections.deliveries.quality import activity_of
from headwater.projections.deliveries.queries import Reader
from headwater.projections.deliveries.users import connections_of
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.workflows.history import PROJECTION as WORKFLOWS
from headwater.schemas.installed_tables import TABLE_BY_NAME
from headwater.streams.auditor.report_log import ReportLog
from headwater.streams.kafka.api_key_log import ApiKeyLog
from headwater.streams.kafka.endpoint_log import EndpointLog
from headwater.streams.loop_watch import Blocked, LoopWatch, log_blocked
from headwater.streams.pipeline.reprocessing import DeadLetters
from headwater.streams.pipeline.request_logs import AnswerLog, AuditLog
from headwater.streams.pipeline.webhook_log import WebhookLog

_VERSION: Final = version("headwater")
_ROOT: Final = "/"

_SERVICE: Final = "workflow_service"
#: Key of the app's state with the watch of its event loop.
LOOP_WATCH: Final = "loop_watch"

#: Bodies of the console's forms, which declare their content type.
_FORMS: Final = BodyKind("application/x-www-form-urlencoded", lambda _: True, b"")

#: Error codes of `/webhooks/{source}`.
_REFUSALS: Final = (
    "bad_request",
    "invalid_signature",
    "unknown_source",
    "body_timeout",
    "body_too_large",
    "too_many_requests",
    "broker_unavailable",
    "overloaded",
    "not_yet_readable",
    "internal_error",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Dependencies of the application.

    Attributes:
        draw: Returns as many random bytes, for API keys.
        clock: Unix milliseconds.
        metrics_folder: Where the processes of this gateway share metrics, if there are several.
        read_lags: Returns how far all consumer groups are, if there is a Kafka.
        oidc: Sign-in to the console with an OpenID provider, if there is one.
    """

    log: WebhookLog
    answers: AnswerLog
    audit: AuditLog
    replays: DeadLetters
    reader: Reader
    workflows: WorkflowPorts
    users: UserServices
    wiping: Wiping
    api_keys: ApiKeyLog
    endpoints: EndpointLog
    auditor: ReportLog
    draw: Callable[[int], bytes]
    clock: Callable[[], int]
    new_request_id: Callable[[], str]
    metrics_folder: MetricsFolder | None = None
    read_lags: ReadLags | None = None
    oidc: OidcSignIn | None = None


def create_app(settings: Settings, sources: Sequence[AnySource], ports: Ports) -> Litestar:
    """Build the application."""
    metrics, refusals = Metrics(), Refusals(ports.answers)
    bodies = BodyReader(max_bytes=settings.max_body_bytes, budget=Budget(read_s=READ_S))
    peer_of = peer_resolver(settings.trusted_proxies)
    limited = LimitedBodies(bodies, peer_of, settings.limits)
    report_refusal = refusal_recorder(refusals, peer_of, ports.clock)
    ring = key_ring_of(settings, ports.api_keys, ports.clock)
    keys = KeyGuard(ring, RateLimits(settings.key_rate_limit, ports.clock))
    callers, streams = Callers(keys, ports.users.tokens), EventStreams()
    service = _workflow_service(settings, ports.workflows, keys, limited, streams)
    # For health checks and streams, which do not wait for other reads, nor these for them.
    watching, following = own_pools = [ports.reader.with_own_pool() for _ in range(2)]
    quality, system, failures = background = _background(ports, sources)
    watch, posted = _loop_watch(metrics), webhook_sources(sources)
    receivers = _receivers(posted, ports, bodies, peer_of, refusals, metrics)
    auditing = _auditing(settings, ports, peer_of, metrics)
    refused_keys, uploads = RefusedKeys(peer_of, ports.clock), _upload_limits(settings, ports)
    app = Litestar(
        [
            *(_receiving(receiver, path) for path, receiver in receivers.items() if path != _ROOT),
            _at_root(Home(_VERSION, tuple(receivers)), receivers.get(_ROOT)),
            _any_other_source(", ".join(source.name for source in posted)),
            read_routes(ports.reader, following, callers, streams),
            *user_routes(_user_ports(ports), callers, limited, peer_of, uploads),
            *_operators_routes(
                settings, ports, sources, keys, limited, [quality.route, *failures.routes]
            ),
            _console(settings, ports, keys, report_refusal, limited),
            registry_routes(settings.topic_prefix),
            asyncapi_route(_VERSION, settings.topic_prefix),
            health_routes(ports.log, watching, metrics, ports.metrics_folder, system.measure, ring),
            *service.routers(),
            *deployment_routes(settings, ports.workflows, service, keys, limited),
        ],
        lifespan=[
            lambda _app: ring.following(),
            lambda _app: _running(ports, service, own_pools, watch, metrics),
            *(_while_running(queries) for queries in background),
            lambda _app: appending_refusals(refused_keys, auditing),
            lambda _app: appending_checkpoints(_checkpoints(settings, ports, auditing)),
        ],
        middleware=[whole_parameters, auditing],
        before_request=attempt_operation,
        before_send=[add_headers],
        after_exception=[record_unmatched(report_refusal)],
        exception_handlers=HANDLERS,
        plugins=[StepTypes(), RouteProblems()],
        openapi_config=_openapi(),
        logging_config=None,
        request_max_body_size=settings.max_body_bytes,
        state=state_of(
            receivers=receivers,
            host_known=hosts_known(settings.host, settings.allowed_hosts),
            new_request_id=ports.new_request_id,
        ),
    )
    wrong_keys = WrongKeys(peer_of, lambda: ports.clock() / 1000)
    app.state.update({WRONG_KEYS: wrong_keys, RECORD_REFUSED: refused_keys.record})
    app.state.update({_SERVICE: service, LOOP_WATCH: watch})
    return app


def _background(
    ports: Ports, sources: Sequence[AnySource]
) -> tuple[DataQuality, SystemMetrics, Failures]:
    """Return the queries that are repeated in the background."""
    quality = DataQuality(ports.reader, silence_limits(providers_of(sources)))
    system = SystemMetrics(ports.reader, ports.read_lags, quality.counted)
    return quality, system, Failures(ports.reader, ports.clock)


def _while_running(
    queries: DataQuality | SystemMetrics | Failures,
) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    return lambda _app: queries.running()


def _receivers(
    sources: Iterable[Source],
    ports: Ports,
    bodies: BodyReader,
    peer_of: Callable[[Scope], str],
    refusals: Refusals,
    metrics: Metrics,
) -> dict[str, Receiver]:
    """Return the receivers of deliveries by path."""
    receivers: dict[str, Receiver] = {}
    for source in sources:
        receiver = Receiver(
            source, log=ports.log, bodies=bodies, peer_of=peer_of, refusals=refusals,
            metrics=metrics, clock=ports.clock, new_request_id=ports.new_request_id,
        )  # fmt: skip
        receivers |= dict.fromkeys(source.paths, receiver)
    return receivers


def _auditing(
    settings: Settings, ports: Ports, peer_of: Callable[[Scope], str], metrics: Metrics
) -> Auditing:
    return Auditing(
        ports.audit,
        project=settings.project,
        peer_of=peer_of,
        metrics=metrics,
        clock=ports.clock,
        new_id=ports.new_request_id,
    )


def _upload_limits(settings: Settings, ports: Ports) -> UploadLimits:
    max_bytes = settings.lab_upload_mib * 1024 * 1024
    return UploadLimits(settings.lab_uploads, max_bytes, lambda: ports.clock() / 1000)


def _checkpoints(settings: Settings, ports: Ports, auditing: Auditing) -> Checkpoints:
    keys = [key.get_secret_value() for key in settings.audit_keys]
    return Checkpoints(
        ports.reader,
        auditing,
        project=settings.project,
        key=keys[0] if keys else "",
        clock=ports.clock,
    )


def _signing(settings: Settings, ports: Ports) -> Signing:
    keys = [key.get_secret_value() for key in settings.audit_keys]
    return Signing(settings.project, keys[0] if keys else "", ports.clock)


def end_streams(app: Litestar) -> None:
    """End open event streams, before the server stops."""
    service: WorkflowService = app.state[_SERVICE]
    service.end_streams()


def _console(
    settings: Settings,
    ports: Ports,
    guard: KeyGuard,
    report_refusal: Callable[[Scope, str], None],
    bodies: LimitedBodies,
) -> Router:
    """Return the console's pages."""
    admin_keys = revealed(settings.admin_key)
    return Console(
        ConsoleKeys(admin_keys[0], revealed(settings.workflow_key)[0]),
        SignIn(guard.find, guard.ring.caller_with_id, settings.project, admin_keys),
        clock=ports.clock,
        record_refusal=report_refusal,
        bodies=bodies.for_kind(_FORMS),
        oidc=ports.oidc,
    ).router()


def _operators_routes(
    settings: Settings,
    ports: Ports,
    sources: Sequence[AnySource],
    keys: KeyGuard,
    limited: LimitedBodies,
    more: Sequence[HTTPRouteHandler],
) -> list[Router]:
    reader, workflows = ports.reader, ports.workflows
    operations = Operations(
        commands=workflows.commands,
        workflows=workflows.workflows,
        new_id=workflows.new_id,
        clock=workflows.clock,
    )
    further = [
        *more,
        *user_operation_routes(_user_ports(ports)),
        *wipe_routes(reader, ports.wiping, ports.users.terra),
        *rebuild_routes(reader, (*TABLE_BY_NAME, WORKFLOWS), workflows.new_id),
        *replay_routes(reader, operations),
        *prune_routes(reader, operations),
        *auditor_routes(ports.auditor.latest, reader, ports.log, _signing(settings, ports)),
    ]
    endpoints = EndpointService(
        ports.endpoints,
        networks=settings.endpoint_networks,
        loopback=settings.loopback_endpoints,
        draw=ports.draw,
        clock=ports.clock,
    )
    hits = UnexpectedHits(reader, settings.project, ports.clock)
    return [
        admin_routes(
            reader,
            ports.log,
            ports.replays,
            providers_of(sources),
            keys=keys,
            limited=limited.for_kind(ANY_JSON),
            more=further,
        ),
        audit_router(reader, keys, settings.project),
        key_router(
            ApiKeyService(ports.api_keys, keys.ring, endpoints, draw=ports.draw, clock=ports.clock),
            keys,
            limited,
        ),
        endpoint_router(endpoints, EndpointDeliveries(endpoints, operations), keys, limited),
        *ownership_routers(settings, hits, keys),
    ]


def _user_ports(ports: Ports) -> UserPorts:
    return UserPorts(
        services=ports.users,
        log=ports.log,
        commands=ports.workflows.commands,
        instances=ports.workflows.workflows,
        connections=partial(connections_of, ports.reader),
        activity=partial(activity_of, ports.reader),
        imports=partial(imports_of, ports.reader, IMPORT_NAMES),
        clock=ports.clock,
        new_id=ports.new_request_id,
    )


def _receiving(receiver: ASGIApp, path: str) -> ASGIRouteHandler:
    @asgi(path, copy_scope=False)
    async def receive_delivery(scope: Scope, receive: Receive, send: Send) -> None:
        await receiver(scope, receive, send)

    return receive_delivery


def _at_root(home: Home, receiver: Receiver | None) -> ASGIRouteHandler:
    """Return the home page's handler, at a path that may also accept deliveries."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if receiver is None or scope.get("method") == HTTPMethod.GET:
            await home(scope, receive, send)
        else:
            await receiver(scope, receive, send)

    return _receiving(answer, _ROOT)


def _any_other_source(known: str) -> HTTPRouteHandler:
    """Answer for sources that do not exist; document the route for those that do.

    Litestar's OpenAPI omits plain ASGI routes, and for readers they are one route.
    """

    @post(
        "/webhooks/{source:str}",
        status_code=200,
        summary="Accept a delivery",
        description=f"The source is one of: {known}. The body is the delivery as its "
        "source signed it. 200 means that Kafka has acknowledged it.",
        responses={
            200: ResponseSpec(Accepted, generate_examples=False, description="It is durable."),
            **responses_of(*_REFUSALS),
        },
        tags=["webhooks"],
    )
    async def take_delivery(source: FromPath[str]) -> None:
        raise Problem("unknown_source", f"expected one of {known}, found {source[:64]!r}")

    return take_delivery


def _loop_watch(metrics: Metrics) -> LoopWatch:
    def blocked(event: Blocked) -> None:
        metrics.loop_blocked()
        log_blocked(event)

    return LoopWatch(metrics.loop_late, blocked)


@asynccontextmanager
async def _running(
    ports: Ports,
    service: WorkflowService,
    own_pools: Sequence[PooledReader],
    watch: LoopWatch,
    metrics: Metrics,
) -> AsyncIterator[None]:
    async with AsyncExitStack() as exits:
        if ports.metrics_folder:
            await exits.enter_async_context(ports.metrics_folder.publishing(metrics.render_own))
        exits.enter_context(watch.watching())
        for log in (ports.log, ports.answers, ports.audit):
            await log.start()
            exits.push_async_callback(log.stop)
        exits.push_async_callback(ports.replays.stop)
        exits.push_async_callback(ports.wiping.log.stop)
        exits.push_async_callback(ports.endpoints.stop)
        exits.push_async_callback(ports.auditor.stop)
        for reader in (ports.reader, *own_pools):
            await reader.open()
            exits.push_async_callback(reader.close)
        await exits.enter_async_context(service.lifespan())
        exits.push_async_callback(ports.users.close)
        yield


def _workflow_service(
    settings: Settings,
    workflows: WorkflowPorts,
    keys: KeyGuard,
    bodies: LimitedBodies,
    streams: EventStreams,
) -> WorkflowService:
    # Without a key that could request ticks, there are none.
    ticks = settings.tick_urls if settings.tick_key else ()
    deployments = workflows.run_ports.deployments
    return WorkflowService(
        workflows,
        gate=replay_gate(settings, workflows.workflows, workflows.runs, deployments),
        keys=keys,
        hook_keys=revealed(settings.hook_keys),
        tick_urls=ticks,
        bodies=bodies,
        limits=settings.limits,
        streams=streams,
        redacted=settings.redacted,
    )


async def _no_such_page(connection: AnyConnection, _: BaseRouteHandler) -> None:
    """Refuse unknown pages below /schema, for which Litestar would answer with its own page."""
    if connection.path_params:
        raise NotFoundException


def _openapi() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="Headwater",
        version=_VERSION,
        description="Signed webhooks in, typed rows out; durable workflows. Errors are RFC 9457 "
        "problem documents.",
        openapi_router=Router(
            "/schema", route_handlers=[], include_in_schema=False, guards=[_no_such_page]
        ),
        components=Components(security_schemes={**KEYS, **SECURITY}),
        render_plugins=[JsonRenderPlugin(path=["/", "/openapi.json"]), SwaggerPage()],
    )
