"""Routes of workflows, under /api/workflows, and of their jobs, under /api/jobs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from litestar import Response, Router, route
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.types import ControllerRouterHandler

from headwater.gateway.api.event_streams import EventStreams
from headwater.gateway.api.json_bodies import ANY_JSON, LimitedBodies
from headwater.gateway.api.key_guards import PROGRAMS, KeyGuard
from headwater.gateway.api.request_parameters import with_checked_parameters
from headwater.gateway.api.workflows.authorization import Authorizer, WorkflowHooks
from headwater.gateway.api.workflows.command_outcomes import Statuses
from headwater.gateway.api.workflows.command_service import BulkService, CommandService
from headwater.gateway.api.workflows.folding import RunFolds
from headwater.gateway.api.workflows.graph_inspection import (
    GraphInspection,
    graph_inspection_routes,
)
from headwater.gateway.api.workflows.graphs import Graphs, graph_router
from headwater.gateway.api.workflows.history_exports import HistoryExports, history_export_route
from headwater.gateway.api.workflows.hooks import BASE as HOOKS_BASE
from headwater.gateway.api.workflows.hooks import Hooks, hook_route
from headwater.gateway.api.workflows.job_routes import job_routes
from headwater.gateway.api.workflows.jobs import JobService
from headwater.gateway.api.workflows.migrations import Migrations, migration_routes
from headwater.gateway.api.workflows.moves import Moves, move_route
from headwater.gateway.api.workflows.parameters import (
    BATCH_ID,
    BATCH_PATH,
    INSTANCE,
    INSTANCES_PATH,
    instance_id,
    min_position,
    run_reference,
    workflow_name,
)
from headwater.gateway.api.workflows.positions import Freshness
from headwater.gateway.api.workflows.query_service import QueryService
from headwater.gateway.api.workflows.read_routes import (
    Tails,
    instance_routes,
    listing_routes,
    tail_route,
)
from headwater.gateway.api.workflows.replay_gate import ReplayGate
from headwater.gateway.api.workflows.request_guard import RequestGuard, requests_within
from headwater.gateway.api.workflows.runs import routes as runs
from headwater.gateway.api.workflows.runs.key_sweeps import sweep_keys
from headwater.gateway.api.workflows.runs.queues import BASE as QUEUES_BASE
from headwater.gateway.api.workflows.runs.queues import Queues, queue_routes
from headwater.gateway.api.workflows.runs.run_service import RunPorts, RunService
from headwater.gateway.api.workflows.runs.world import BASE as WORLD_BASE
from headwater.gateway.api.workflows.runs.world import WorldApi, world_routes
from headwater.gateway.api.workflows.runs.world_reads import world_read_routes
from headwater.gateway.api.workflows.ticks import Ticks
from headwater.gateway.api.workflows.write_routes import (
    branch_output_route,
    bulk_route,
    creation_routes,
    event_route,
    lifecycle_route,
    tick_route,
)
from headwater.processors.runs.lifecycle import ACTIONS
from headwater.processors.triggers.rules import Rule
from headwater.projections.workflows.queries import Workflows
from headwater.projections.workflows.world import WorldEntries
from headwater.schemas.history import Limits
from headwater.streams.authoring.programs import Runtime
from headwater.streams.evaluation.evaluator import EvaluatorProcess
from headwater.streams.workflows.client import WorkflowClient
from headwater.streams.workflows.deployment_log import DefinitionLog
from headwater.streams.workflows.history_topic import RunReader

BASE: Final = "/api/workflows"
JOBS_BASE: Final = "/api/jobs"

#: Seconds that a caller waits for a worker to decide a command. Most commands take a few ms, and
#: a worker that acquires a partition needs a few seconds.
OUTCOME_TIMEOUT_S: Final = 10.0

#: Provides the positions that a request requires to be applied.
_POSITION: Final = {"position": Provide(min_position)}
#: Path of one instance.
_INSTANCE_PATH: Final = f"{INSTANCES_PATH}/{{{INSTANCE}:str}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowPorts:
    """External dependencies of the workflow service.

    Attributes:
        workers: Returns the names of the workflow workers that run.
        new_id: Returns globally unique ids for instances and events.
        clock: Returns Unix milliseconds.
        rules: Rules, of which those about queues are used.
    """

    commands: WorkflowClient
    definitions: DefinitionLog
    run_ports: RunPorts
    world: WorldEntries
    workflows: Workflows
    runs: RunReader
    hooks: WorkflowHooks
    workers: Callable[[], Awaitable[Sequence[str]]]
    new_id: Callable[[], str]
    clock: Callable[[], int]
    rules: Sequence[Rule] = ()


class WorkflowService:
    """Builds the routes, and starts and stops the services that they call."""

    def __init__(  # noqa: PLR0913 (one argument per setting)
        self,
        ports: WorkflowPorts,
        *,
        keys: KeyGuard,
        hook_keys: Sequence[str],
        tick_urls: Sequence[str],
        bodies: LimitedBodies,
        limits: Limits,
        streams: EventStreams,
        gate: ReplayGate,
        redacted: Sequence[str] = (),
    ) -> None:
        self._ports = ports
        self._requests = requests_within(limits)
        self._freshness = Freshness(ports.workflows.next_offsets)
        self._ticks = Ticks(tick_urls)
        self._tails = Tails(ports.workflows, self._freshness, streams)
        #: Also guards routes outside this package.
        self.request_guard = RequestGuard(Authorizer(ports.hooks), keys, Runtime(ports.clock))
        self._bodies = bodies
        folds = RunFolds(ports.runs)
        deployments = ports.run_ports.deployments
        self._query_service = QueryService(
            ports.workflows, self._freshness, ports.definitions, deployments, folds
        )
        self._inspection = GraphInspection(
            self._query_service, ports.workflows, folds, EvaluatorProcess()
        )
        self._exports = HistoryExports(
            self._query_service, ports.workflows, folds, redacted=redacted, new_salt=ports.new_id
        )
        self._command_service = CommandService(
            ports.commands, Statuses(ports.workflows.statuses), self._freshness, limits
        )
        self._migrations = Migrations(ports.definitions, self._inspection, self._command_service)
        #: Also checks deployments before they are activated.
        self.gate = gate
        self._moves = Moves(deployments, gate, self._query_service, self._command_service)
        self._keys = keys
        self._run_service = RunService(ports.run_ports, self._command_service, new_id=ports.new_id)
        self._queues = Queues(self._run_service, self._command_service, ports.rules)
        self._world = WorldApi(
            self._run_service,
            self._command_service,
            self._queues,
            limits=limits,
            new_id=ports.new_id,
        )
        self._hooks = Hooks(
            self._command_service,
            hook_keys,
            project=ports.run_ports.project_id,
            clock=ports.clock,
            new_id=ports.new_id,
        )
        self._jobs = JobService(
            ports.commands, ports.workflows, self._freshness, new_id=ports.new_id
        )
        self._shutdown_callbacks = [streams.close, self._jobs.close, gate.close]

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Start the services of the routes; stop them on exit."""
        async with AsyncExitStack() as stack:
            await self._ports.commands.start()
            stack.push_async_callback(self._ports.commands.stop)
            stack.push_async_callback(self._ports.definitions.stop)
            stack.push_async_callback(self._ports.run_ports.deployments.stop)
            await self._ticks.start()
            stack.push_async_callback(self._ticks.stop)
            await self._freshness.start()
            stack.push_async_callback(self._freshness.stop)
            stack.callback(self.end_streams)
            sweeping = asyncio.create_task(
                sweep_keys(self._ports.run_ports.keys), name="sweep idempotency keys"
            )
            stack.callback(sweeping.cancel)
            yield

    async def fence(self) -> None:
        """Return when Postgres has everything that workers had decided before; see there."""
        await self._command_service.fence()

    def add_shutdown_callback(self, callback: Callable[[], None]) -> None:
        """Register a callback that `end_streams` calls."""
        self._shutdown_callbacks.append(callback)

    def end_streams(self) -> None:
        """End long-running responses, which would delay the shutdown of the server."""
        for callback in self._shutdown_callbacks:
            callback()

    def routers(self) -> list[Router]:
        """Return the routers of workflows, graphs, jobs, runs and `/v1/world`."""
        graphs = Graphs(self._ports.definitions, clock=self._ports.clock)
        jobs = job_routes(self.request_guard, self._query_service, self._jobs)
        rows = self._ports.run_ports.rows
        run_routes = runs.run_routes(
            self.request_guard, self._query_service, self._run_service, rows
        )
        guarded: dict[str, Any] = {
            "guards": [with_checked_parameters(self.request_guard.guard)],
            "dependencies": _POSITION,
        }
        world_guards = [with_checked_parameters(self._keys.requires(PROGRAMS))]
        return [
            self._router(),
            graph_router(graphs, self.request_guard, self._bodies),
            self._limited_router(JOBS_BASE, jobs, "jobs", **guarded),
            self._limited_router(runs.BASE, run_routes, "runs", **guarded),
            self._limited_router(
                QUEUES_BASE,
                queue_routes(self.request_guard, self._query_service, self._queues, rows),
                "queues",
                **guarded,
            ),
            self._limited_router(
                HOOKS_BASE,
                [hook_route(self._hooks)],
                "hooks",
                bodies=self._bodies.for_kind(ANY_JSON),
                # Without a check of parameters: programs that send e-mails add some to links.
                guards=[self._hooks.guard],
            ),
            self._limited_router(
                WORLD_BASE,
                [*world_routes(self._world), *world_read_routes(rows, self._ports.world)],
                "world",
                guards=world_guards,
            ),
        ]

    def _router(self) -> Router:
        guarded = Router(
            "/",
            route_handlers=[
                *listing_routes(self._query_service),
                *creation_routes(self.request_guard, self._command_service, self._ports.new_id),
                bulk_route(BulkService(self._query_service, self._command_service), self._moves),
                *_instance_routers(self._instance_routes()),
            ],
            guards=[with_checked_parameters(self.request_guard.guard)],
        )
        return self._limited_router(
            BASE,
            [_options_route(), guarded, tick_route(self.request_guard, self._ticks)],
            "workflows",
            dependencies={"workflow": Provide(workflow_name), **_POSITION},
        )

    def _limited_router(
        self,
        base: str,
        handlers: Sequence[ControllerRouterHandler],
        tag: str,
        bodies: LimitedBodies | None = None,
        **options: Any,  # noqa: ANN401 (passed to Router)
    ) -> Router:
        """Return a router that limits request bodies."""
        return Router(
            base,
            route_handlers=handlers,
            middleware=[bodies or self._bodies],
            request_class=self._requests,
            request_max_body_size=None,
            tags=[tag],
            **options,
        )

    def _instance_routes(self) -> list[HTTPRouteHandler]:
        """Return the routes of one instance; their paths are relative to the instance's."""
        return [
            *instance_routes(self._query_service),
            history_export_route(self._exports),
            *graph_inspection_routes(self._inspection),
            *migration_routes(self._migrations),
            *[lifecycle_route(self._command_service, action) for action in ACTIONS],
            move_route(self._moves),
            branch_output_route(self._command_service),
            event_route(self.request_guard, self._command_service, self._ports.new_id),
            tail_route(self.request_guard, self._query_service, self._tails),
        ]


def _instance_routers(handlers: list[HTTPRouteHandler]) -> list[Router]:
    """Mount the routes of one instance under any instance id, and again under the id `batch`.

    Litestar prefers a literal path segment and does not backtrack. Under the path of batches it
    would not match the routes of an instance with the id `batch`.
    """
    return [
        Router(
            _INSTANCE_PATH,
            route_handlers=handlers,
            dependencies={"instance_id": Provide(instance_id), "run": Provide(run_reference)},
        ),
        Router(
            BATCH_PATH,
            route_handlers=handlers,
            dependencies={
                "instance_id": Provide(_batch_id, sync_to_thread=False),
                "run": Provide(run_reference),
            },
            include_in_schema=False,
            opt={INSTANCE: BATCH_ID},
        ),
    ]


def _batch_id() -> str:
    return BATCH_ID


def _options_route() -> HTTPRouteHandler:
    """Answer OPTIONS for paths with two handlers; Litestar lists only the first one's methods."""
    paths = [INSTANCES_PATH, BATCH_PATH]

    @route(paths, http_method="OPTIONS", status_code=204, include_in_schema=False)
    async def list_methods() -> Response[None]:
        return Response(None, headers={"allow": "GET, OPTIONS, POST"})

    return list_methods
