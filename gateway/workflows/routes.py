"""The routes of workflows, under /api/workflows, and of their jobs, under /api/jobs."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from litestar import Response, Router, route
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.types import ControllerRouterHandler

from headwater.gateway.http.checked_parameters import checked_parameters
from headwater.gateway.http.keys import programs_only
from headwater.gateway.http.limited_bodies import LimitedBodies
from headwater.gateway.workflows.authorization import (
    Gatekeeper,
    WorkflowHooks,
)
from headwater.gateway.workflows.bulk import Bulk
from headwater.gateway.workflows.entrance import (
    Entrance,
    requests_within,
)
from headwater.gateway.workflows.folding import Folds, RunLog
from headwater.gateway.workflows.freshness import Freshness
from headwater.gateway.workflows.graph_routes import graph_router
from headwater.gateway.workflows.graphs import Definitions, Graphs
from headwater.gateway.workflows.introspection_routes import looks
from headwater.gateway.workflows.job_routes import job_routes
from headwater.gateway.workflows.jobs import Jobs
from headwater.gateway.workflows.looking import Looking
from headwater.gateway.workflows.parameters import (
    BATCH,
    BATCH_ID,
    INSTANCE,
    OF_WORKFLOW,
    instance_id,
    min_position,
    run_asked,
    workflow_name,
)
from headwater.gateway.workflows.read_routes import listings, reads_of_instance, tail
from headwater.gateway.workflows.reading import Reading
from headwater.gateway.workflows.runs import routes as runs
from headwater.gateway.workflows.runs import world_routes
from headwater.gateway.workflows.runs.running import Running, RunPorts
from headwater.gateway.workflows.runs.world import World
from headwater.gateway.workflows.statuses import Statuses
from headwater.gateway.workflows.tail import Tails
from headwater.gateway.workflows.tick import Ticks
from headwater.gateway.workflows.write_routes import bulk, creations, events, retry, steering, tick
from headwater.gateway.workflows.writing import Writing
from headwater.projections.workflows.queries import Workflows
from headwater.schemas.history import Limits
from headwater.streams.authoring.lifecycle import ACTIONS
from headwater.streams.authoring.runtime import Runtime
from headwater.streams.evaluation.evaluator import EvaluatorProcess
from headwater.streams.workflows.client import Commands

BASE: Final = "/api/workflows"
JOBS_BASE: Final = "/api/jobs"

#: Seconds that a caller waits for a worker to decide a command: most take some ms, and a worker
#: that takes a partition over needs a few seconds.
OUTCOME_WITHIN_S: Final = 10.0

#: What a reader asks to have applied.
_POSITION: Final = {"position": Provide(min_position)}
#: Where one instance is, and all of a workflow's are.
_OF_INSTANCE: Final = f"{OF_WORKFLOW}/{{{INSTANCE}:str}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowPorts:
    """What the workflow service needs of the world.

    Shape:  new_id gives ids of instances and events that nobody else has; clock, Unix
            milliseconds.
    """

    commands: Commands
    definitions: Definitions
    of_runs: RunPorts
    workflows: Workflows
    runs: RunLog
    hooks: WorkflowHooks
    new_id: Callable[[], str]
    clock: Callable[[], int]


class ServiceKeys(NamedTuple):
    """Who may use workflows, who runs that are asked for elsewhere, and who may tick."""

    workflow: str
    world: str
    tick: str


class WorkflowService:
    """The routes, and the life of what is behind them."""

    def __init__(
        self,
        ports: WorkflowPorts,
        *,
        keys: ServiceKeys,
        tick_urls: Sequence[str],
        bodies: LimitedBodies,
        limits: Limits,
    ) -> None:
        self._ports = ports
        self._requests = requests_within(limits)
        self._freshness = Freshness(ports.workflows.next_offsets)
        self._ticks = Ticks(tick_urls if keys.tick else ())
        self._tails = Tails(ports.workflows, self._freshness)
        #: The way in, also to what is beside workflows.
        self.entrance = Entrance(
            Gatekeeper(ports.hooks, workflow_key=keys.workflow, tick_key=keys.tick),
            Runtime(ports.clock),
        )
        self._bodies = bodies
        folds = Folds(ports.runs)
        self._reading = Reading(
            ports.workflows, self._freshness, ports.definitions, ports.of_runs.deployments, folds
        )
        self._looking = Looking(self._reading, ports.workflows, folds, EvaluatorProcess())
        self._writing = Writing(
            ports.commands, Statuses(ports.workflows.statuses), self._freshness, limits
        )
        self._world_key = keys.world
        self._running = Running(
            ports.of_runs,
            self._writing,
            new_id=ports.new_id,
        )
        self._world = World(self._running, self._writing, limits=limits, new_id=ports.new_id)
        self._jobs = Jobs(
            ports.commands,
            ports.workflows,
            self._freshness,
            new_id=ports.new_id,
        )

        self._endings = [self._tails.close, self._jobs.close]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs what is behind the routes."""
        async with AsyncExitStack() as parts:
            await self._ports.commands.start()
            parts.push_async_callback(self._ports.commands.stop)
            parts.push_async_callback(self._ports.definitions.stop)
            parts.push_async_callback(self._ports.of_runs.deployments.stop)
            await self._ticks.start()
            parts.push_async_callback(self._ticks.stop)
            await self._freshness.start()
            parts.push_async_callback(self._freshness.stop)
            parts.callback(self.end_streams)
            yield

    def at_end(self, end: Callable[[], None]) -> None:
        """Has something ended with `end_streams`."""
        self._endings.append(end)

    def end_streams(self) -> None:
        """Ends what takes long; a server that waits for its connections would wait for it."""
        for end in self._endings:
            end()

    def routers(self) -> list[Router]:
        """The routes: of workflows, of graphs that are deployed, and of workers outside."""
        graphs = Graphs(self._ports.definitions, clock=self._ports.clock)
        jobs = job_routes(self.entrance, self._reading, self._jobs)
        rows = self._ports.of_runs.rows
        of_runs = runs.run_routes(self.entrance, self._reading, self._running, rows)
        entered = {
            "guards": [self.entrance.guard, checked_parameters],
            "dependencies": _POSITION,
        }
        world = [programs_only(self._world_key), checked_parameters]
        return [
            self._router(),
            graph_router(graphs, self.entrance, self._bodies),
            self._at(JOBS_BASE, jobs, "jobs", **entered),
            self._at(runs.BASE, of_runs, "runs", **entered),
            self._at(
                world_routes.BASE, world_routes.world_routes(self._world), "world", guards=world
            ),
        ]

    def _router(self) -> Router:
        guarded = Router(
            "/",
            route_handlers=[
                *listings(self._reading),
                *creations(self.entrance, self._writing, self._ports.new_id),
                bulk(Bulk(self._reading, self._writing)),
                *_at_instances(self._of_instance()),
            ],
            guards=[self.entrance.guard, checked_parameters],
        )
        return self._at(
            BASE,
            [_methods(), guarded, tick(self.entrance, self._ticks)],
            "workflows",
            dependencies={"workflow": Provide(workflow_name), **_POSITION},
        )

    def _at(
        self,
        base: str,
        handlers: Sequence[ControllerRouterHandler],
        tag: str,
        **more: Any,  # noqa: ANN401 (what a router takes)
    ) -> Router:
        """Routes whose bodies are held to the limits."""
        return Router(
            base,
            route_handlers=handlers,
            middleware=[self._bodies],
            request_class=self._requests,
            request_max_body_size=None,
            tags=[tag],
            **more,
        )

    def _of_instance(self) -> list[HTTPRouteHandler]:
        """The routes of one instance, by what follows its id."""
        return [
            *reads_of_instance(self._reading),
            *looks(self._looking),
            *[steering(self._writing, verb) for verb in ACTIONS],
            retry(self._writing),
            events(self.entrance, self._writing, self._ports.new_id),
            tail(self._reading, self._tails),
        ]


def _at_instances(handlers: list[HTTPRouteHandler]) -> list[Router]:
    """Routes of one instance where all instances are, and once more where that named batch is.

    Litestar goes along a path that is spelled out and does not turn back: beneath the path of
    batches it would find nothing else.
    """
    return [
        Router(
            _OF_INSTANCE,
            route_handlers=handlers,
            dependencies={"instance_id": Provide(instance_id), "run": Provide(run_asked)},
        ),
        Router(
            BATCH,
            route_handlers=handlers,
            dependencies={
                "instance_id": Provide(_batch_id, sync_to_thread=False),
                "run": Provide(run_asked),
            },
            include_in_schema=False,
            opt={INSTANCE: BATCH_ID},
        ),
    ]


def _batch_id() -> str:
    return BATCH_ID


def _methods() -> HTTPRouteHandler:
    """Names the methods of paths that have two handlers: Litestar would name those of the first."""
    paths = [OF_WORKFLOW, BATCH]

    @route(paths, http_method="OPTIONS", status_code=204, include_in_schema=False)
    async def list_methods() -> Response[None]:
        return Response(None, headers={"allow": "GET, OPTIONS, POST"})

    return list_methods
