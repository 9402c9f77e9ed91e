"""The HTTP application: its routes, and the life of the ports behind them."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import Final

from litestar import Litestar, asgi, post
from litestar.datastructures import State
from litestar.enums import ScopeType
from litestar.handlers import ASGIRouteHandler, HTTPRouteHandler
from litestar.openapi import OpenAPIConfig, ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin, YamlRenderPlugin
from litestar.openapi.spec import Components
from litestar.params import FromPath
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from headwater.gateway.http.admin import admin_routes
from headwater.gateway.http.bodies import BodyReader
from headwater.gateway.http.budget import READ_S, Budget
from headwater.gateway.http.health import health_routes
from headwater.gateway.http.metrics import Metrics
from headwater.gateway.http.peers import peers_behind
from headwater.gateway.http.ports import AnswerLog, DeliveryLog, Replays
from headwater.gateway.http.problems import HANDLERS, Problem, ProblemDocument
from headwater.gateway.http.reads import read_routes
from headwater.gateway.http.refusals import Refusals
from headwater.gateway.http.request_scope import STATE_NAME, request_id_of
from headwater.gateway.http.schema_registry import registry
from headwater.gateway.http.webhooks import Accepted, Receiver
from headwater.gateway.settings import Settings
from headwater.gateway.workflows.entrance import LimitedBodies
from headwater.gateway.workflows.openapi import SECURITY
from headwater.gateway.workflows.routes import WorkflowPorts, WorkflowService
from headwater.gateway.workflows.swagger import SwaggerPage
from headwater.processors.sources import Source
from headwater.projections.deliveries.queries import Reader

_RECEIVERS: Final = "receivers"
_SERVICE: Final = "workflow_service"

_REFUSALS: Final = {
    400: "empty_body or malformed_payload.",
    401: "invalid_signature, with the reason.",
    404: "unknown_source.",
    413: "body_too_large.",
    503: "broker_unavailable, overloaded or not_yet_readable; try again after Retry-After.",
}


def create_app(  # noqa: PLR0913 (all that it joins)
    settings: Settings,
    *,
    sources: Sequence[Source],
    log: DeliveryLog,
    answers: AnswerLog,
    reader: Reader,
    replays: Replays,
    clock: Callable[[], int],
    new_request_id: Callable[[], str],
    workflows: WorkflowPorts | None = None,
) -> Litestar:
    """Builds the application; without ports of workflows it has no routes for them.

    Units:  the clock in Unix milliseconds.
    """
    metrics = Metrics()
    bodies = BodyReader(max_bytes=settings.max_body_bytes, budget=Budget(read_s=READ_S))
    peer_of = peers_behind(settings.trusted_proxies)
    refusals = Refusals(answers)
    receivers = {
        source.paths: Receiver(
            source,
            log=log,
            bodies=bodies,
            peer_of=peer_of,
            refusals=refusals,
            metrics=metrics,
            clock=clock,
            new_request_id=new_request_id,
        )
        for source in sources
    }
    service = None
    if workflows is not None:
        service = _workflow_service(settings, workflows, LimitedBodies(bodies, peer_of))
    return Litestar(
        [
            *(_receiving(receiver, paths) for paths, receiver in receivers.items()),
            _any_other_source(", ".join(source.name for source in sources)),
            read_routes(reader, settings.read_key.get_secret_value()),
            admin_routes(reader, replays, settings.admin_key.get_secret_value()),
            registry,
            health_routes(log, reader, metrics),
            *([] if service is None else [service.router()]),
        ],
        lifespan=[lambda _app: _running([log, answers, replays], reader, service)],
        before_send=[_name_request],
        exception_handlers=HANDLERS,
        openapi_config=_openapi(),
        logging_config=None,
        request_max_body_size=settings.max_body_bytes,
        state=State(
            {
                STATE_NAME: new_request_id,
                _RECEIVERS: {path: one for paths, one in receivers.items() for path in paths},
                _SERVICE: service,
            }
        ),
    )


def with_short_cut(app: Litestar) -> ASGIApp:
    """The app, with deliveries led to their receivers before Litestar looks at them.

    Routing, scope state and exception layers cost some 11 microseconds a request, which a producer
    that posts to a fixed path has no use for. Everything else goes the usual way.
    """
    receivers: Mapping[str, Receiver] = app.state[_RECEIVERS]

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        receiver = receivers.get(scope["path"]) if scope["type"] == ScopeType.HTTP else None
        if receiver is None:
            await app(scope, receive, send)
        else:
            await receiver(scope, receive, send)

    return front


def end_streams(app: Litestar) -> None:
    """Ends what would go on for as long as its reader stays; for when the server is to end."""
    service: WorkflowService | None = app.state[_SERVICE]
    if service is not None:
        service.end_streams()


def _receiving(receiver: Receiver, paths: tuple[str, ...]) -> ASGIRouteHandler:
    @asgi(list(paths), copy_scope=False)
    async def receive_delivery(scope: Scope, receive: Receive, send: Send) -> None:
        await receiver(scope, receive, send)

    return receive_delivery


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
            **{
                status: ResponseSpec(ProblemDocument, generate_examples=False, description=codes)
                for status, codes in _REFUSALS.items()
            },
        },
        tags=["webhooks"],
    )
    async def take_delivery(source: FromPath[str]) -> None:
        raise Problem("unknown_source", f"expected one of {known}, found {source[:64]!r}")

    return take_delivery


@asynccontextmanager
async def _running(
    kafka: Iterable[DeliveryLog | AnswerLog | Replays],
    reader: Reader,
    service: WorkflowService | None,
) -> AsyncIterator[None]:
    async with AsyncExitStack() as ports:
        for port in kafka:
            await port.start()
            ports.push_async_callback(port.stop)
        await reader.open()
        ports.push_async_callback(reader.close)
        if service is not None:
            await ports.enter_async_context(service.running())
        yield


def _workflow_service(
    settings: Settings, workflows: WorkflowPorts, bodies: LimitedBodies
) -> WorkflowService:
    """The workflow service, with the keys of the settings."""
    return WorkflowService(
        workflows,
        workflow_key=settings.workflow_key.get_secret_value(),
        tick_key=settings.tick_key.get_secret_value(),
        tick_url=settings.tick_url,
        bodies=bodies,
    )


async def _name_request(message: Message, scope: Scope) -> None:
    """Puts the request's id on every answer that has none yet."""
    if message["type"] != "http.response.start" or scope["type"] != ScopeType.HTTP:
        return
    headers = list(message.get("headers", []))
    if all(name.lower() != b"x-request-id" for name, _ in headers):
        headers.append((b"x-request-id", request_id_of(scope).encode()))
        message["headers"] = headers


def _openapi() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="Headwater",
        version=version("headwater"),
        description="Signed webhooks in, typed rows out; durable workflows. Errors are RFC 9457 "
        "problem documents.",
        path="/schema",
        components=Components(security_schemes=dict(SECURITY)),
        render_plugins=[
            JsonRenderPlugin(path=["/", "/openapi.json"]),
            YamlRenderPlugin(),
            SwaggerPage(),
        ],
    )
