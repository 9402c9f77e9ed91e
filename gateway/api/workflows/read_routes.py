"""Routes that read workflows and instances."""

from litestar import Response, get
from litestar.di import NamedDependency, Provide
from litestar.handlers import HTTPRouteHandler

from headwater.gateway.api.streaming import Streamed
from headwater.gateway.api.workflows import examples
from headwater.gateway.api.workflows.openapi import read_spec
from headwater.gateway.api.workflows.parameters import (
    ALL_INSTANCES_PATH,
    INSTANCES_PATH,
    HistoryQuery,
    InstancesQuery,
    LastEventHeader,
    LastEventQuery,
    PathName,
    Position,
)
from headwater.gateway.api.workflows.query_service import QueryService
from headwater.gateway.api.workflows.tail import Tails
from headwater.schemas import answers
from headwater.schemas.failures import (
    INSTANCE_NOT_FOUND,
    WORKFLOW_NOT_FOUND,
)


def listing_routes(query_service: QueryService) -> list[HTTPRouteHandler]:
    """Return the routes that list workflows and instances."""

    @get(
        "/workflows",
        operation_id="listWorkflows",
        summary="List the workflows",
        description="Workflows of the code that workers have, or had when instances were created, "
        "and deployed workflows, with the JSON Schemas of their params. Built-in workflows are not "
        "listed.",
        **read_spec(answers.WorkflowList, examples.NAMES),
    )
    async def list_workflows(position: Position) -> Response[bytes]:
        return await query_service.list_workflows(position)

    @get(
        INSTANCES_PATH,
        operation_id="listInstances",
        summary="List the instances of a workflow, newest first",
        description="Pages are stable while instances are created and deleted: the cursor names "
        "the last instance of a page.",
        dependencies={"filters": Provide(InstancesQuery, sync_to_thread=False)},
        **read_spec(
            answers.InstancePage,
            examples.LISTING,
            "invalid_cursor",
            WORKFLOW_NOT_FOUND,
            # The log is read for a graph of that name before the workflow is reported missing.
            "broker_unavailable",
            "not_yet_readable",
        ),
    )
    async def list_instances(
        workflow: PathName, filters: NamedDependency[InstancesQuery], position: Position
    ) -> Response[bytes]:
        return await query_service.list_instances(workflow, filters, position)

    @get(
        ALL_INSTANCES_PATH,
        operation_id="listAllInstances",
        summary="List the instances of all workflows, newest first",
        description="Instances of built-in workflows are left out; list them by the name of their "
        "workflow.",
        dependencies={"filters": Provide(InstancesQuery, sync_to_thread=False)},
        **read_spec(answers.InstancePage, examples.LISTING, "invalid_cursor"),
    )
    async def list_all_instances(
        filters: NamedDependency[InstancesQuery], position: Position
    ) -> Response[bytes]:
        return await query_service.list_instances(None, filters, position)

    return [list_workflows, list_instances, list_all_instances]


def instance_routes(query_service: QueryService) -> list[HTTPRouteHandler]:
    """Return the routes that read one instance."""

    @get(
        "/",
        operation_id="getInstance",
        summary="Get an instance",
        description="Its status, its params and its current step.",
        **read_spec(answers.Instance, examples.INSTANCE, INSTANCE_NOT_FOUND),
    )
    async def get_instance(
        workflow: PathName, instance_id: PathName, position: Position
    ) -> Response[bytes]:
        return await query_service.get_instance(workflow, instance_id, position)

    @get(
        "/history",
        operation_id="getHistory",
        summary="Get the history of a run",
        description="Steps in the order in which they were first reached, or tokens of a graph in "
        "the order of their creation, events in the order of their arrival, and log lines. Every "
        "list has a cursor of its own.",
        dependencies={"filters": Provide(HistoryQuery, sync_to_thread=False)},
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
        filters: NamedDependency[HistoryQuery],
        position: Position,
    ) -> Response[bytes]:
        return await query_service.get_history(workflow, instance_id, filters, position)

    return [get_instance, get_history]


def tail_route(query_service: QueryService, tails: Tails) -> HTTPRouteHandler:
    """Return the route that streams the changes of one instance."""

    @get(
        "/events-stream",
        operation_id="followInstance",
        summary="Stream the changes of an instance",
        description="Server-sent events: `status`, `step`, `token`, `event` and `log`, with the "
        "same data as in a history, and `end` when the instance has ended. The stream begins with "
        "the current run, or after Last-Event-ID. Comments keep the connection alive.",
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
        row = await query_service.find_instance(workflow, instance_id, applied)
        tails.require_capacity()
        after = last_event if last_event_id is None else last_event_id
        return tails.response(row, -1 if after is None else after)

    return follow_instance
