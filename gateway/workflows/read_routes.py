"""The routes that read of workflows."""

from litestar import Response, get
from litestar.di import NamedDependency, Provide
from litestar.handlers import HTTPRouteHandler

from headwater.gateway.http.streaming import Streamed
from headwater.gateway.workflows import examples
from headwater.gateway.workflows.openapi import read_spec
from headwater.gateway.workflows.parameters import (
    ALL_INSTANCES,
    OF_WORKFLOW,
    HistoryQuery,
    InstancesQuery,
    LastEventHeader,
    LastEventQuery,
    PathName,
    Position,
)
from headwater.gateway.workflows.query_service import QueryService
from headwater.gateway.workflows.tail import Tails
from headwater.schemas import answers
from headwater.schemas.failures import (
    INSTANCE_NOT_FOUND,
    WORKFLOW_NOT_FOUND,
)


def listing_routes(query_service: QueryService) -> list[HTTPRouteHandler]:
    """Of all workflows, and of all instances of one."""

    @get(
        "/workflows",
        operation_id="listWorkflows",
        summary="The workflows that there are",
        description="Those of authors: in code that a worker has, or had while they got instances, "
        "and those that are deployed. Each with the JSON Schema of its params, if it has one.",
        **read_spec(answers.WorkflowList, examples.NAMES),
    )
    async def list_workflows(position: Position) -> Response[bytes]:
        return await query_service.list_workflows(position)

    @get(
        OF_WORKFLOW,
        operation_id="listInstances",
        summary="Instances of a workflow, newest first",
        description="A page holds still while instances come and go: its cursor names the last "
        "one seen.",
        dependencies={"asked": Provide(InstancesQuery, sync_to_thread=False)},
        **read_spec(
            answers.InstancePage,
            examples.LISTING,
            "invalid_cursor",
            WORKFLOW_NOT_FOUND,
            # Before a workflow is said not to exist, the log is asked for a graph of its name.
            "broker_unavailable",
            "not_yet_readable",
        ),
    )
    async def list_instances(
        workflow: PathName, asked: NamedDependency[InstancesQuery], position: Position
    ) -> Response[bytes]:
        return await query_service.list_instances(workflow, asked, position)

    @get(
        ALL_INSTANCES,
        operation_id="listAllInstances",
        summary="Instances of all workflows, newest first",
        description="Those of the workflows that come with Headwater are left out; each is listed "
        "under its own name.",
        dependencies={"asked": Provide(InstancesQuery, sync_to_thread=False)},
        **read_spec(answers.InstancePage, examples.LISTING, "invalid_cursor"),
    )
    async def list_all_instances(
        asked: NamedDependency[InstancesQuery], position: Position
    ) -> Response[bytes]:
        return await query_service.list_instances(None, asked, position)

    return [list_workflows, list_instances, list_all_instances]


def instance_routes(query_service: QueryService) -> list[HTTPRouteHandler]:
    """Of one instance."""

    @get(
        "/",
        operation_id="getInstance",
        summary="One instance, whole",
        description="How it stands, what it was started with, and the step that it stands at.",
        **read_spec(answers.Instance, examples.INSTANCE, INSTANCE_NOT_FOUND),
    )
    async def get_instance(
        workflow: PathName, instance_id: PathName, position: Position
    ) -> Response[bytes]:
        return await query_service.get_instance(workflow, instance_id, position)

    @get(
        "/history",
        operation_id="getHistory",
        summary="What happened in a run",
        description="Steps in the order in which they were first reached, or tokens of a graph in "
        "that of their creation, events as they came, lines as they were written; "
        "each with a cursor of its own.",
        dependencies={"asked": Provide(HistoryQuery, sync_to_thread=False)},
        **read_spec(
            answers.HistoryPage,
            examples.HISTORY,
            "invalid_cursor",
            INSTANCE_NOT_FOUND,
            "RUN_NOT_FOUND",
        ),
    )
    async def get_history(
        workflow: PathName,
        instance_id: PathName,
        asked: NamedDependency[HistoryQuery],
        position: Position,
    ) -> Response[bytes]:
        return await query_service.get_history(workflow, instance_id, asked, position)

    return [get_instance, get_history]


def tail_route(query_service: QueryService, tails: Tails) -> HTTPRouteHandler:
    """Of one instance, as it goes."""

    @get(
        "/events-stream",
        operation_id="followInstance",
        summary="Follow an instance as it goes",
        description="Server-sent events: `status`, `step`, `token`, `event` and `log`, each with "
        "what a history says of it, and `end` when the instance has ended. Begins with the current "
        "run, or after Last-Event-ID. Comments keep the connection alive.",
        **read_spec(
            str, examples.TAIL, "overloaded", INSTANCE_NOT_FOUND, media_type="text/event-stream"
        ),
    )
    async def follow_instance(
        workflow: PathName,
        instance_id: PathName,
        position: Position,
        last_event_id: LastEventHeader = None,
        last_event: LastEventQuery = None,
    ) -> Streamed:
        applied = await query_service.wait_until_applied(position)
        found = await query_service.find_instance(workflow, instance_id, applied)
        tails.require_capacity()
        after = last_event if last_event_id is None else last_event_id
        return tails.response(found, -1 if after is None else after)

    return follow_instance
