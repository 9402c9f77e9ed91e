"""The routes of workflows, under /api/workflows."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from litestar import Response, Router, get, post, route
from litestar.handlers import HTTPRouteHandler

from headwater.gateway.http.bodies import BodyReader
from headwater.gateway.workflows import bodies, operations
from headwater.gateway.workflows.authorization import (
    Gatekeeper,
    Policy,
    RequestContext,
    WorkflowHooks,
)
from headwater.gateway.workflows.entrance import INSTANCE, WORKFLOW, AnyRequest, Entrance, query_of
from headwater.gateway.workflows.freshness import Freshness
from headwater.gateway.workflows.parameters import read_last_event_id
from headwater.gateway.workflows.reading import Reading, answer
from headwater.gateway.workflows.tail import TailResponse, Tails
from headwater.gateway.workflows.tick import Ticks
from headwater.gateway.workflows.writing import Writing
from headwater.projections.workflows.queries import Workflows
from headwater.schemas.history import (
    Command,
    Json,
    PauseRun,
    RestartRun,
    ResumeRun,
    RetryRun,
    TerminateRun,
)
from headwater.streams.workflows.client import Commands

BASE: Final = "/api/workflows"

#: Seconds that a caller waits for a worker to decide a command: most take some ms, and a worker
#: that takes a partition over needs a few seconds.
OUTCOME_WITHIN_S: Final = 10.0

_OF_WORKFLOW: Final = f"/workflows/{{{WORKFLOW}:str}}/instances"
_OF_INSTANCE: Final = f"{_OF_WORKFLOW}/{{{INSTANCE}:str}}"
#: Where batches are created, and where the instance of that id is found.
_BATCH_ID: Final = "batch"
_BATCH: Final = f"{_OF_WORKFLOW}/{_BATCH_ID}"

#: What the verbs send that need no body.
_VERBS: Final[dict[str, Command]] = {
    "pause": PauseRun(),
    "resume": ResumeRun(),
    "terminate": TerminateRun(),
    "restart": RestartRun(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowPorts:
    """What the workflow service needs of the world.

    Shape:  new_id gives ids of instances and events that nobody else has.
    """

    commands: Commands
    workflows: Workflows
    hooks: WorkflowHooks
    new_id: Callable[[], str]


class WorkflowService:
    """The routes, and the life of what is behind them."""

    def __init__(
        self,
        ports: WorkflowPorts,
        *,
        workflow_key: str,
        tick_key: str,
        tick_url: str,
        max_body_bytes: int,
    ) -> None:
        self._ports = ports
        self._freshness = Freshness(ports.workflows.next_offsets)
        self._ticks = Ticks(tick_url if tick_key else "")
        self._tails = Tails(ports.workflows, self._freshness)
        self._entrance = Entrance(
            Gatekeeper(ports.hooks, workflow_key=workflow_key, tick_key=tick_key),
            BodyReader(max_bytes=max_body_bytes),
        )
        self._reading = Reading(ports.workflows, self._freshness)
        self._writing = Writing(ports.commands, ports.workflows, self._freshness)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs what is behind the routes."""
        async with AsyncExitStack() as parts:
            await self._ports.commands.start()
            parts.push_async_callback(self._ports.commands.stop)
            await self._ticks.start()
            parts.push_async_callback(self._ticks.stop)
            await self._freshness.start()
            parts.push_async_callback(self._freshness.stop)
            parts.callback(self.end_streams)
            yield

    def end_streams(self) -> None:
        """Ends the streams; a server that waits for its connections would wait for them."""
        self._tails.close()

    def router(self) -> Router:
        """The routes."""
        handlers: list[HTTPRouteHandler | Router] = [
            _methods(),
            *_listings(self._entrance, self._reading),
            *_creations(self._entrance, self._writing, self._ports.new_id),
            *_at_instances(self._of_instance()),
            _tick(self._entrance, self._ticks),
        ]
        return Router(BASE, route_handlers=handlers, tags=["workflows"])

    def _of_instance(self) -> list[HTTPRouteHandler]:
        """The routes of one instance, by what follows its id."""
        return [
            *_reads(self._entrance, self._reading),
            *[_verb(self._entrance, self._writing, verb) for verb in _VERBS],
            _retry(self._entrance, self._writing),
            _events(self._entrance, self._writing, self._ports.new_id),
            _tail(self._entrance, self._reading, self._tails),
        ]


def _names(context: RequestContext) -> tuple[str, str]:
    return context.workflow_name or "", context.instance_id or ""


def _at_instances(handlers: list[HTTPRouteHandler]) -> list[Router]:
    """Routes of one instance where all instances are, and once more where that named batch is.

    Litestar goes along a path that is spelled out and does not turn back: beneath the path of
    batches it would find nothing else.
    """
    return [
        Router(_OF_INSTANCE, route_handlers=handlers),
        Router(_BATCH, route_handlers=handlers, include_in_schema=False, opt={INSTANCE: _BATCH_ID}),
    ]


def _methods() -> HTTPRouteHandler:
    """Names the methods of paths that have two handlers: Litestar would name those of the first."""
    paths = [_OF_WORKFLOW, _BATCH]

    @route(paths, http_method="OPTIONS", status_code=204, include_in_schema=False)
    async def list_methods() -> Response[None]:
        return Response(None, headers={"allow": "GET, OPTIONS, POST"})

    return list_methods


def _listings(entrance: Entrance, reading: Reading) -> list[HTTPRouteHandler]:
    @get("/workflows", **operations.LIST_WORKFLOWS)
    async def list_workflows(request: AnyRequest) -> Response[bytes]:
        await entrance.enter(request, Policy.READ)
        return await reading.names(query_of(request))

    @get(_OF_WORKFLOW, **operations.LIST_INSTANCES)
    async def list_instances(request: AnyRequest) -> Response[bytes]:
        context = await entrance.enter(request, Policy.READ)
        return await reading.listing(context.workflow_name or "", query_of(request))

    return [list_workflows, list_instances]


def _reads(entrance: Entrance, reading: Reading) -> list[HTTPRouteHandler]:
    @get("/", **operations.GET_INSTANCE)
    async def get_instance(request: AnyRequest) -> Response[bytes]:
        context = await entrance.enter(request, Policy.READ)
        return await reading.instance(*_names(context), query_of(request))

    @get("/history", **operations.GET_HISTORY)
    async def get_history(request: AnyRequest) -> Response[bytes]:
        context = await entrance.enter(request, Policy.READ)
        return await reading.history(*_names(context), query_of(request))

    return [get_instance, get_history]


def _creations(
    entrance: Entrance, writing: Writing, new_id: Callable[[], str]
) -> list[HTTPRouteHandler]:
    @post(_OF_WORKFLOW, **operations.CREATE_INSTANCE)
    async def create_instance(request: AnyRequest) -> Response[bytes]:
        context = await entrance.admit(request, Policy.CREATE)
        async with entrance.body(request) as body:
            asked = bodies.read_instance(body)
            await _allow_creation(entrance, context, asked.id, asked.params)
            name = asked.id or new_id()
            return await writing.create(_names(context)[0], name, asked.params, request.headers)

    @post(_BATCH, **operations.CREATE_INSTANCES)
    async def create_instances(request: AnyRequest) -> Response[bytes]:
        context = await entrance.admit(request, Policy.CREATE)
        async with entrance.body(request) as body:
            batch = bodies.read_batch(body)
            for instance_id, params in batch:
                await _allow_creation(entrance, context, instance_id, params)
            return await writing.create_batch(_names(context)[0], batch, request.headers)

    return [create_instance, create_instances]


async def _allow_creation(
    entrance: Entrance, context: RequestContext, instance_id: str | None, params: Json
) -> None:
    creating = replace(context, policy=Policy.CREATE, instance_id=instance_id)
    await entrance.allow(creating, lambda: {"id": instance_id, "params": bodies.generic(params)})


async def _allow_event(entrance: Entrance, context: RequestContext, event: bodies.NewEvent) -> None:
    """Asks whether an event may be sent; one that may create, also whether that may be."""
    await entrance.allow(
        context, lambda: {"type": event.type, "payload": bodies.generic(event.payload)}
    )
    if event.start is not None:
        await _allow_creation(entrance, context, context.instance_id, event.start)


def _verb(entrance: Entrance, writing: Writing, verb: str) -> HTTPRouteHandler:
    command = _VERBS[verb]

    @post(f"/{verb}", **operations.verb(verb, begins=isinstance(command, RestartRun)))
    async def manage(request: AnyRequest) -> Response[bytes]:
        context = await entrance.enter(request, Policy.MANAGE)
        async with entrance.body(request) as body:
            bodies.read_nothing(body)
        return await writing.manage(*_names(context), command, request.headers)

    return manage


def _retry(entrance: Entrance, writing: Writing) -> HTTPRouteHandler:
    @post("/retry", **operations.RETRY_INSTANCE)
    async def retry(request: AnyRequest) -> Response[bytes]:
        context = await entrance.enter(request, Policy.MANAGE)
        async with entrance.body(request) as body:
            command = RetryRun(bodies.read_retry(body))
        return await writing.manage(*_names(context), command, request.headers)

    return retry


def _events(entrance: Entrance, writing: Writing, new_id: Callable[[], str]) -> HTTPRouteHandler:
    @post("/events", **operations.SEND_EVENT)
    async def send_event(request: AnyRequest) -> Response[bytes]:
        context = await entrance.admit(request, Policy.SEND_EVENT)
        workflow, instance_id = _names(context)
        async with entrance.body(request) as body:
            event = bodies.read_event(body)
            await _allow_event(entrance, context, event)
            return await writing.send_event(workflow, instance_id, event, new_id(), request.headers)

    return send_event


def _tail(entrance: Entrance, reading: Reading, tails: Tails) -> HTTPRouteHandler:
    @get("/events-stream", **operations.FOLLOW_INSTANCE)
    async def follow_instance(request: AnyRequest) -> TailResponse:
        context = await entrance.enter(request, Policy.READ)
        query = query_of(request)
        after = read_last_event_id(query, request.headers)
        applied = await reading.fresh(query)
        found = await reading.find(*_names(context), applied)
        tails.require_room()
        return tails.response(found, -1 if after is None else after)

    return follow_instance


def _tick(entrance: Entrance, ticks: Ticks) -> HTTPRouteHandler:
    @post("/_runner/tick", **operations.TICK)
    async def tick(request: AnyRequest) -> Response[bytes]:
        ticks.require()
        await entrance.enter(request, Policy.TICK)
        async with entrance.body(request) as body:
            asked = bodies.read_tick(body)
        return answer(await ticks.tick(asked), {})

    return tick
