"""The HTTP application: its routes, and the life of the ports behind them."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from http import HTTPMethod
from importlib.metadata import version
from typing import Any, Final

from litestar import Litestar, Router, asgi, post
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.enums import ScopeType
from litestar.exceptions import NotFoundException
from litestar.handlers import ASGIRouteHandler, BaseRouteHandler, HTTPRouteHandler
from litestar.openapi import OpenAPIConfig, ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin, YamlRenderPlugin
from litestar.openapi.spec import Components
from litestar.params import FromPath
from litestar.types import ASGIApp, Message, Middleware, Receive, Scope, Send

from headwater.gateway.console.asking import Keys
from headwater.gateway.console.routes import Console
from headwater.gateway.deployments.checking import Checking
from headwater.gateway.deployments.deploying import Deploying
from headwater.gateway.deployments.routes import deployment_routers
from headwater.gateway.http.admin import admin_routes
from headwater.gateway.http.asyncapi import asyncapi_route
from headwater.gateway.http.audit_routes import audit_router
from headwater.gateway.http.auditing import Auditing
from headwater.gateway.http.bodies import BodyReader
from headwater.gateway.http.budget import READ_S, Budget
from headwater.gateway.http.callers import Callers
from headwater.gateway.http.heads import answer_head, naming_head
from headwater.gateway.http.health import health_routes
from headwater.gateway.http.hosts import hosts_known
from headwater.gateway.http.keys import key_id
from headwater.gateway.http.metrics import Metrics
from headwater.gateway.http.openapi import SECURITY as KEYS
from headwater.gateway.http.openapi import responses_of
from headwater.gateway.http.own_instances import OwnInstances
from headwater.gateway.http.ownership import UnexpectedHits, ownership_routers
from headwater.gateway.http.pages import SECURITY_HEADERS, Home
from headwater.gateway.http.peers import peers_behind
from headwater.gateway.http.ports import AnswerLog, AuditLog, DeliveryLog, Replays, Wipes
from headwater.gateway.http.problems import HANDLERS, MEDIA_TYPE, Problem, document
from headwater.gateway.http.prunes import prune_routes
from headwater.gateway.http.reads import read_routes
from headwater.gateway.http.rebuilds import rebuild_routes
from headwater.gateway.http.refusals import Refusals
from headwater.gateway.http.replays import replay_routes
from headwater.gateway.http.request_scope import STATE_NAME, request_id_of
from headwater.gateway.http.schema_registry import registry
from headwater.gateway.http.segments import split_as_sent, whole_parameters
from headwater.gateway.http.strays import refusals_told, strays_told
from headwater.gateway.http.webhooks import Accepted, Receiver
from headwater.gateway.http.wiping import Wiping, wipe_routes
from headwater.gateway.settings import Settings
from headwater.gateway.sources import secret_variables
from headwater.gateway.users.ports import ForUsers, UserPorts
from headwater.gateway.users.routes import user_routes
from headwater.gateway.workflows.entrance import BodyKind, LimitedBodies
from headwater.gateway.workflows.openapi import SECURITY
from headwater.gateway.workflows.routes import ServiceKeys, WorkflowPorts, WorkflowService
from headwater.gateway.workflows.swagger import SwaggerPage
from headwater.gateway.workflows.wire import StepTypes
from headwater.processors.sources import Source, providers_of
from headwater.projections.deliveries.of_user import connections_of
from headwater.projections.deliveries.queries import Reader
from headwater.projections.workflows.history import PROJECTION as WORKFLOWS
from headwater.schemas.installed_tables import TABLE_BY_NAME

_VERSION: Final = version("headwater")
_ROOT: Final = "/"

_RECEIVERS: Final = "receivers"
_HOST_KNOWN: Final = "host_known"
_SERVICE: Final = "workflow_service"

_SECURITY: Final = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]

#: Answers that say which methods a path takes: to OPTIONS, and to one that it does not take.
_NAMING_METHODS: Final = frozenset({204, 405})

#: Bodies of the console's forms, which say of themselves what they are.
_FORMS: Final = BodyKind("application/x-www-form-urlencoded", lambda _: True, b"")

#: Of `/webhooks/{source}`.
_REFUSALS: Final = (
    "empty_body",
    "malformed_payload",
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


def create_app(  # noqa: PLR0913 (all that it joins)
    settings: Settings,
    *,
    sources: Sequence[Source],
    log: DeliveryLog,
    answers: AnswerLog,
    audit: AuditLog,
    reader: Reader,
    replays: Replays,
    clock: Callable[[], int],
    new_request_id: Callable[[], str],
    workflows: WorkflowPorts | None = None,
    users: ForUsers | None = None,
    wiping: Wiping | None = None,
) -> Litestar:
    """Builds the application; without ports of workflows it has no routes for them.

    Shape:  without what is for users there are no routes for them, and no token is taken.

    Units:  the clock in Unix milliseconds.
    """
    metrics = Metrics()
    bodies = BodyReader(max_bytes=settings.max_body_bytes, budget=Budget(read_s=READ_S))
    peer_of = peers_behind(settings.trusted_proxies)
    refusals = Refusals(answers)
    receiving = partial(
        Receiver, log=log, bodies=bodies, peer_of=peer_of, refusals=refusals, metrics=metrics,
        clock=clock, new_request_id=new_request_id,
    )  # fmt: skip
    by_path = _by_path(sources, receiving)
    limited = LimitedBodies(bodies, peer_of)
    tell = refusals_told(refusals, peer_of, clock)
    callers = Callers(settings.read_key.get_secret_value(), users.tokens if users else None)
    kafka = (log, answers, audit, replays)
    service, of_workflows, of_users = None, [], []
    if workflows is not None:
        service = _workflow_service(settings, workflows, limited)
        of_workflows = [*service.routers(), *_deployments(settings, workflows, service, limited)]
    if workflows is not None and users is not None:
        ports = _user_ports(users, workflows, log, reader, clock, new_request_id)
        of_users = user_routes(ports, callers, limited, peer_of)
    return Litestar(
        [
            *(_receiving(each, [path]) for path, each in by_path.items() if path != _ROOT),
            _at_root(Home(_VERSION, tuple(by_path)), by_path.get(_ROOT)),
            _any_other_source(", ".join(source.name for source in sources)),
            read_routes(reader, callers),
            *of_users,
            *_watching(settings, reader, clock, _console(settings, clock, tell, limited)),
            _admin_routes(settings, reader, log, replays, sources, wiping, workflows),
            registry,
            asyncapi_route(_VERSION),
            health_routes(log, reader, metrics),
            *of_workflows,
        ],
        lifespan=[lambda _app: _running(kafka, wiping, reader, service, users)],
        middleware=_middleware(settings, audit, peer_of, metrics, clock, new_request_id),
        before_send=[_add_headers],
        after_exception=[strays_told(tell)],
        exception_handlers=HANDLERS,
        plugins=[StepTypes()],
        openapi_config=_openapi(),
        logging_config=None,
        request_max_body_size=settings.max_body_bytes,
        state=_state(settings, new_request_id, by_path, service),
    )


def _by_path(
    sources: Iterable[Source], receiving: Callable[[Source], Receiver]
) -> dict[str, Receiver]:
    """A receiver for each source, by all of its paths."""
    receivers = [(source.paths, receiving(source)) for source in sources]
    return {path: receiver for paths, receiver in receivers for path in paths}


def front_of(app: Litestar) -> ASGIApp:
    """What is served: the app behind a look at the name it is called by.

    Deliveries are led to their receivers before Litestar looks at them. Routing, scope state and
    exception layers cost some 11 microseconds a request, which a producer that posts to a fixed
    path has no use for. Everything else goes the usual way.
    """
    receivers: Mapping[str, Receiver] = app.state[_RECEIVERS]

    host_known: Callable[[Scope], bool] = app.state[_HOST_KNOWN]

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await app(scope, receive, send)
            return
        receiver = receivers.get(scope["path"]) if scope["method"] == HTTPMethod.POST else None
        if receiver is not None:
            await receiver(scope, receive, send)
        elif not host_known(scope):
            await _refuse_name(scope, send, app.state[STATE_NAME])
        elif scope["method"] == HTTPMethod.HEAD:
            await answer_head(app, split_as_sent(scope), receive, send)
        else:
            await app(split_as_sent(scope), receive, send)

    return front


async def _refuse_name(scope: Scope, send: Send, new_request_id: Callable[[], str]) -> None:
    request_id = new_request_id()
    status, body = document(
        code="unknown_host",
        detail="expected a name of this gateway in the header Host, found another; if it is one, "
        "add it to HEADWATER_ALLOWED_HOSTS",
        instance=scope["path"],
        request_id=request_id,
    )
    headers = {"content-type": MEDIA_TYPE, "x-request-id": request_id, **SECURITY_HEADERS}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def end_streams(app: Litestar) -> None:
    """Ends what would go on for as long as its reader stays; for when the server is to end."""
    service: WorkflowService | None = app.state[_SERVICE]
    if service is not None:
        service.end_streams()


def _state(
    settings: Settings,
    new_request_id: Callable[[], str],
    receivers: Mapping[str, Receiver],
    service: WorkflowService | None,
) -> State:
    """What `front_of` and `end_streams` find in the application."""
    known = hosts_known(settings.host, settings.allowed_hosts)
    return State(
        {
            STATE_NAME: new_request_id,
            _RECEIVERS: receivers,
            _HOST_KNOWN: known,
            _SERVICE: service,
        }
    )


def _admin_routes(  # noqa: PLR0913, PLR0917 (all that they join)
    settings: Settings,
    reader: Reader,
    log: DeliveryLog,
    replays: Replays,
    sources: Sequence[Source],
    wiping: Wiping | None,
    workflows: WorkflowPorts | None,
) -> Router:
    key = settings.admin_key.get_secret_value()
    more: list[HTTPRouteHandler] = [] if wiping is None else wipe_routes(reader, wiping)
    if workflows is not None:
        more += rebuild_routes(reader, (*TABLE_BY_NAME, WORKFLOWS), workflows.new_id)
        own = OwnInstances(
            commands=workflows.commands,
            workflows=workflows.workflows,
            new_id=workflows.new_id,
            clock=workflows.clock,
        )
        more += replay_routes(reader, own) + prune_routes(reader, own)
    return admin_routes(reader, log, replays, providers_of(sources), key, more)


def _console(
    settings: Settings,
    clock: Callable[[], int],
    tell: Callable[[Scope, str], None],
    bodies: LimitedBodies,
) -> Router:
    """The pages for people, with the keys that they ask the API with."""
    keys = Keys(settings.admin_key.get_secret_value(), settings.workflow_key.get_secret_value())
    return Console(keys, clock=clock, refused=tell, bodies=bodies.of(_FORMS)).router()


def _watching(
    settings: Settings, reader: Reader, clock: Callable[[], int], console: Router
) -> list[Router]:
    """What operators look at."""
    key = settings.admin_key.get_secret_value()
    hits = UnexpectedHits(reader, settings.project, clock)
    return [audit_router(reader, key), *ownership_routers(settings, hits, key), console]


def _middleware(
    settings: Settings,
    log: AuditLog,
    peer_of: Callable[[Scope], str],
    metrics: Metrics,
    clock: Callable[[], int],
    new_id: Callable[[], str],
) -> list[Middleware]:
    auditing = Auditing(
        log,
        project=settings.project,
        peer_of=peer_of,
        metrics=metrics,
        clock=clock,
        new_id=new_id,
    )
    return [whole_parameters, auditing]


def _user_ports(
    users: ForUsers,
    workflows: WorkflowPorts,
    log: DeliveryLog,
    reader: Reader,
    clock: Callable[[], int],
    new_id: Callable[[], str],
) -> UserPorts:
    return UserPorts(
        outside=users,
        log=log,
        commands=workflows.commands,
        instances=workflows.workflows,
        connections=partial(connections_of, reader),
        clock=clock,
        new_id=new_id,
    )


def _receiving(receiver: ASGIApp, paths: Sequence[str]) -> ASGIRouteHandler:
    @asgi(list(paths), copy_scope=False)
    async def receive_delivery(scope: Scope, receive: Receive, send: Send) -> None:
        await receiver(scope, receive, send)

    return receive_delivery


def _at_root(home: Home, receiver: Receiver | None) -> ASGIRouteHandler:
    """The page, at a path where deliveries may come in, too."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if receiver is None or scope.get("method") == HTTPMethod.GET:
            await home(scope, receive, send)
        else:
            await receiver(scope, receive, send)

    return _receiving(answer, [_ROOT])


def _any_other_source(known: str) -> HTTPRouteHandler:
    """Answers for sources that do not exist; documents the route for those that do.

    Litestar's OpenAPI leaves out plain ASGI routes, and to a reader of it they are one route.
    """

    @post(
        "/webhooks/{source:str}",
        status_code=200,
        summary="Take a delivery",
        description=f"The source is one of: {known}. The body is the delivery as its "
        "producer signed it. 200 means that Kafka has acknowledged it.",
        responses={
            200: ResponseSpec(Accepted, generate_examples=False, description="It is safe."),
            **responses_of(*_REFUSALS),
        },
        tags=["webhooks"],
    )
    async def take_delivery(source: FromPath[str]) -> None:
        raise Problem("unknown_source", f"expected one of {known}, found {source[:64]!r}")

    return take_delivery


@asynccontextmanager
async def _running(
    kafka: Iterable[DeliveryLog | AnswerLog | AuditLog | Replays | Wipes],
    wiping: Wiping | None,
    reader: Reader,
    service: WorkflowService | None,
    users: ForUsers | None,
) -> AsyncIterator[None]:
    async with AsyncExitStack() as ports:
        for port in (*kafka, *([] if wiping is None else [wiping.log])):
            await port.start()
            ports.push_async_callback(port.stop)
        await reader.open()
        ports.push_async_callback(reader.close)
        if service is not None:
            await ports.enter_async_context(service.running())
        if users is not None:
            ports.push_async_callback(users.close)
        yield


def _workflow_service(
    settings: Settings, workflows: WorkflowPorts, bodies: LimitedBodies
) -> WorkflowService:
    """The workflow service, with the keys of the settings."""
    return WorkflowService(
        workflows,
        keys=ServiceKeys(
            workflow=settings.workflow_key.get_secret_value(),
            world=settings.world_key.get_secret_value(),
            tick=settings.tick_key.get_secret_value(),
        ),
        tick_urls=settings.tick_urls,
        bodies=bodies,
        limits=settings.limits,
    )


def _deployments(
    settings: Settings, workflows: WorkflowPorts, service: WorkflowService, bodies: LimitedBodies
) -> list[Router]:
    """The routes of deployments, with the keys of the settings."""
    key = settings.admin_key.get_secret_value()
    checking = Checking(hidden=secret_variables(settings), limits=settings.limits)
    service.at_end(checking.close)
    deploying = Deploying(
        workflows.of_runs.deployments,
        checking,
        by=key_id("admin", key),
        clock=workflows.clock,
    )
    return deployment_routers(
        deploying, service.entrance, bodies, key, settings.world_key.get_secret_value()
    )


async def _add_headers(message: Message, scope: Scope) -> None:
    """Puts on every answer its request's id, and what keeps it out of other pages."""
    if message["type"] != "http.response.start" or scope["type"] != ScopeType.HTTP:
        return
    headers = list(message.get("headers", []))
    if message["status"] in _NAMING_METHODS:
        headers = [naming_head(each) for each in headers]
    if all(name.lower() != b"x-request-id" for name, _ in headers):
        headers.append((b"x-request-id", request_id_of(scope).encode()))
    # A page may have a policy of its own: of two, browsers keep to both.
    named = {name.lower() for name, _ in headers}
    message["headers"] = [*headers, *(each for each in _SECURITY if each[0] not in named)]


def _no_such_page(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Refuses pages beneath the description that are not there: Litestar has one of its own."""
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
        render_plugins=[
            JsonRenderPlugin(path=["/", "/openapi.json"]),
            YamlRenderPlugin(),
            SwaggerPage(),
        ],
    )
