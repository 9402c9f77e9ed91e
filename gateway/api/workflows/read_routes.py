"""Routes that read workflows and instances, and stream live changes of an instance."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Final

from litestar import Response, get
from litestar.di import NamedDependency, Provide
from litestar.handlers import HTTPRouteHandler

from headwater.gateway.api.body_limits import Streamed
from headwater.gateway.api.event_streams import MEDIA_TYPE, EventStreams, encode_message
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.workflows import examples
from headwater.gateway.api.workflows.openapi import read_spec
from headwater.gateway.api.workflows.parameters import (
    ALL_INSTANCES_PATH,
    INSTANCES_PATH,
    HistoryQuery,
    InstancesQuery,
    LastEventHeader,
    LastEventQuery,
    MessageNames,
    PathName,
    Position,
    message_names,
)
from headwater.gateway.api.workflows.positions import HEADER, Freshness, format_positions
from headwater.gateway.api.workflows.query_service import QueryService, encode
from headwater.gateway.api.workflows.request_guard import RequestGuard
from headwater.projections.workflows.queries import (
    FOLLOWED,
    Changed,
    Changes,
    LocatedInstance,
    Workflows,
)
from headwater.schemas import answers
from headwater.schemas.answers import STREAMED, Answer, GraphEvent, Instance, StatusOfRun
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.failures import INSTANCE_NOT_FOUND, WORKFLOW_NOT_FOUND

#: Seconds between two queries of a stream, at least.
_GAP_S: Final = 0.05
#: Seconds before a stream queries Postgres again when it is unavailable.
_RETRY_S: Final = 1.0
#: Event name of a message by the type of its data; the last message of a stream is named `end`.
_EVENT_NAMES: Final = {kind: event for event, kind in STREAMED.items() if event in FOLLOWED}


class Tails:
    """Streams of changes, for one gateway.

    A message is a step, a token, an event, a log line or the instance's status, encoded as in a
    history. One record may cause several messages. Only the last of them has its offset as `id`, so
    a client that resumes after an id gets every message once.
    """

    def __init__(self, workflows: Workflows, freshness: Freshness, streams: EventStreams) -> None:
        self._workflows = workflows
        self._freshness = freshness
        self.streams = streams

    def response(
        self,
        row: LocatedInstance,
        after: int,
        names: frozenset[str],
        still_admits: Callable[[], bool],
    ) -> Streamed:
        """Return the stream of an instance's changes after an offset.

        Args:
            row: The instance.
            after: The offset.
            names: Names of the messages to send, besides `end`.
            still_admits: Whether the caller's key is valid at this moment; else the stream ends.
        """
        position = format_positions({row.partition: row.offset})
        chunks = self._chunks(row, after, names, still_admits)
        return self.streams.response(chunks, {HEADER: position})

    async def _chunks(
        self,
        row: LocatedInstance,
        after: int,
        names: frozenset[str],
        still_admits: Callable[[], bool],
    ) -> AsyncGenerator[bytes, None]:
        partition, status = row.partition, _status(row.instance)
        while still_admits() and not self.streams.closing.is_set():
            seen = self._freshness.applied().get(partition, -1)
            changes = await self._changes(row.instance, after, names)
            if changes is None:
                await self.streams.sleep(_RETRY_S)
            else:
                after = changes.offset
                status = _latest(changes.rows) or status
                sent = [changed for changed in changes.rows if _name_of(changed) in names]
                if sent:
                    yield b"".join(_messages(sent))
                if changes.more:
                    continue
                if status.ended:
                    yield message("end", status, after)
                    return
                await self._wait_for_advance(partition, seen)
            yield b""

    async def _changes(
        self, instance: Instance, after: int, names: frozenset[str]
    ) -> Changes | None:
        """Return the changes after an offset; None while Postgres is unavailable or rebuilt."""
        workflow = instance.meta.workflow_name
        try:
            return await self._workflows.changes(workflow, instance.id, after, names=names)
        except StoreUnavailable:
            return None

    async def _wait_for_advance(self, partition: int, seen: int) -> None:
        """Wait until a partition advances, the next heartbeat is due, or all streams end."""
        await self.streams.sleep(_GAP_S)
        try:
            await self.streams.until_closing(
                self._freshness.wait_until_applied(
                    {partition: seen + 1}, self.streams.heartbeat_s, patient=True
                )
            )
        except StoreUnavailable:
            await self.streams.sleep(_RETRY_S)


def message(event: str, data: Answer, offset: int | None) -> bytes:
    """Encode a message; without an offset the client keeps the previous id."""
    return encode_message(event, encode(data), offset)


def _name_of(changed: Changed) -> str:
    """Return the event name of a change's message."""
    row = changed.row
    return row.name if isinstance(row, GraphEvent) else _EVENT_NAMES[type(row)]


def _messages(rows: Sequence[Changed]) -> Iterator[bytes]:
    for index, changed in enumerate(rows):
        last = index + 1 == len(rows) or rows[index + 1].offset != changed.offset
        yield message(_name_of(changed), changed.row, changed.offset if last else None)


def _latest(rows: tuple[Changed, ...]) -> StatusOfRun | None:
    return next(
        (changed.row for changed in reversed(rows) if isinstance(changed.row, StatusOfRun)), None
    )


def _status(instance: Instance) -> StatusOfRun:
    details = instance.details
    return StatusOfRun(
        status=details.status,
        error=details.error,
        output=details.output,
        run_number=instance.meta.run_number,
    )


# -- routes


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


def tail_route(
    request_guard: RequestGuard, query_service: QueryService, tails: Tails
) -> HTTPRouteHandler:
    """Return the route that streams the changes of one instance."""

    @get(
        "/events-stream",
        operation_id="followInstance",
        summary="Stream the changes of an instance",
        description="Server-sent events: `status`, `step`, `token`, `event` and `log`, with the "
        "same data as in a history, and `end` when the instance has ended. With `names`, only "
        "these, which may also be workflow events of a graph, such as `fan_in.completed`. The "
        "stream begins with the current run, or after Last-Event-ID. Comments keep the connection "
        "alive. It ends when the key is revoked or expires.",
        **read_spec(str, examples.TAIL, "overloaded", INSTANCE_NOT_FOUND, media_type=MEDIA_TYPE),
    )
    async def follow_instance(  # noqa: PLR0913, PLR0917 (one argument for each parameter)
        request: AnyRequest,
        workflow: PathName,
        instance_id: PathName,
        position: Position,
        last_event_id: LastEventHeader = None,
        last_event: LastEventQuery = None,
        names: MessageNames = None,
    ) -> Streamed:
        followed = message_names(names)
        applied = await query_service.wait_until_applied(position)
        row = await query_service.find_instance(workflow, instance_id, applied)
        tails.streams.require_capacity()
        after = last_event if last_event_id is None else last_event_id
        return tails.response(
            row,
            -1 if after is None else after,
            followed,
            lambda: request_guard.still_admits(request),
        )

    return follow_instance
