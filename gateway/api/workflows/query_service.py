"""Read workflows from Postgres: names, instances, jobs and histories, encoded for HTTP."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypedDict, TypeVar

import msgspec
from litestar import Response
from litestar.openapi.spec import OpenAPIType, Schema
from litestar.plugins import OpenAPISchemaPlugin
from litestar.typing import FieldDefinition
from typing_extensions import override

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows.folding import RunFolds
from headwater.gateway.api.workflows.parameters import (
    PAGE_MAX,
    HistoryQuery,
    InstancesQuery,
    read_labels,
    read_within,
)
from headwater.gateway.api.workflows.positions import HEADER, Freshness, Positions, format_positions
from headwater.projections.errors import InvalidCursor
from headwater.projections.workflows.queries import (
    ANY_TIME,
    LocatedInstance,
    Order,
    Page,
    RunKey,
    TimeRange,
    Workflows,
)
from headwater.projections.workflows.trimmed_entries import TrimmedEntries
from headwater.schemas.answers import (
    Answer,
    CurrentStep,
    HistoryPage,
    Instance,
    InstanceFound,
    InstanceMeta,
    InstancePage,
    JobPage,
    WorkflowList,
)
from headwater.schemas.failures import INSTANCE_NOT_FOUND, WORKFLOW_NOT_FOUND
from headwater.schemas.history import instance_key
from headwater.schemas.statuses import WAIT_OVER_HTTP, EntryKind, RunStatus
from headwater.streams.workflows.deployment_log import DefinitionLog, DeploymentLog

C = TypeVar("C", bound=CurrentStep)
S = TypeVar("S", InstanceMeta, InstanceFound)


class StepTypes(OpenAPISchemaPlugin):
    """OpenAPI schema of entry types as responses encode them."""

    @staticmethod
    @override
    def is_plugin_supported_type(value: Any) -> bool:
        return value is EntryKind

    @override
    def to_openapi_schema(
        self,
        field_definition: FieldDefinition,
        schema_creator: Any,
    ) -> Schema:
        del field_definition, schema_creator
        shown = [kind.value for kind in EntryKind if kind not in {EntryKind.WAIT, EntryKind.NOW}]
        return Schema(type=OpenAPIType.STRING, enum=[*shown, WAIT_OVER_HTTP.value])


def encode(response: Answer) -> bytes:
    """Encode a response as JSON."""
    return msgspec.json.encode(_in_http_spelling(response))


def _in_http_spelling(response: Answer) -> Answer:
    match response:
        case CurrentStep():
            return _step(response)
        case HistoryPage():
            return msgspec.structs.replace(response, steps=[_step(step) for step in response.steps])
        case Instance():
            return msgspec.structs.replace(response, meta=_with_step(response.meta))
        case InstancePage():
            instances = [_with_step(instance) for instance in response.instances]
            return msgspec.structs.replace(response, instances=instances)
        case _:
            return response


def _with_step(row: S) -> S:
    """Convert the current step of a row, if it has one."""
    step = row.current_step
    return row if step is None else msgspec.structs.replace(row, current_step=_step(step))


def _step(step: C) -> C:
    if step.type is not EntryKind.WAIT:
        return step
    return msgspec.structs.replace(step, type=WAIT_OVER_HTTP)


# -- reads

#: Seconds that a request waits for the positions that it requires.
_APPLIED_TIMEOUT_S: Final = 10.0

JSON: Final = "application/json"


class _Paged(TypedDict):
    order: Order
    limit: int
    after: str | None


class QueryService:
    """Answers reads from Postgres, once the positions that they require are applied."""

    def __init__(
        self,
        workflows: Workflows,
        freshness: Freshness,
        definitions: DefinitionLog,
        deployments: DeploymentLog,
        folds: RunFolds,
    ) -> None:
        self._workflows = workflows
        self._freshness = freshness
        self._definitions = definitions
        self._deployments = deployments
        self._folds = folds

    async def wait_until_applied(self, required: Positions) -> Positions:
        """Wait until the required positions are applied; return all applied positions.

        Raises:
            Problem: They were not applied in time.
        """
        if not required:
            await self._freshness.refresh()
            required = self._freshness.lost()
        if required and not await self._freshness.wait_until_applied(required, _APPLIED_TIMEOUT_S):
            applied = format_positions(self._freshness.applied())
            raise Problem(
                "position_not_reached",
                f"expected {format_positions(required)} to be applied within "
                f"{_APPLIED_TIMEOUT_S:.0f} s, found {applied or 'nothing'}; usual causes: no "
                "projector runs, it lags, or the position does not exist",
            )
        return self._freshness.applied()

    def applied(self) -> Positions:
        """Return the positions that were applied at the last poll."""
        return self._freshness.applied()

    async def list_workflows(self, required: Positions) -> Response[bytes]:
        """List the workflows."""
        applied = await self.wait_until_applied(required)
        return response_of(WorkflowList(workflows=await self._workflows.registered()), applied)

    async def list_instances(
        self,
        workflow: str | None,
        query: InstancesQuery,
        required: Positions,
    ) -> Response[bytes]:
        """Return a page of instances of one workflow, or of all workflows."""
        labels = read_labels(query.label or ())
        updated = read_within(query.updated_since, query.updated_before)
        applied = await self.wait_until_applied(required)
        page = await self.instance_page(
            workflow,
            applied,
            status=query.status,
            error_name=query.error_name,
            labels=labels,
            updated=updated,
            page_size=query.page_size,
            cursor=query.cursor,
        )
        body = InstancePage(
            instances=list(page.rows), has_next_page=page.cursor is not None, cursor=page.cursor
        )
        return response_of(body, applied)

    async def instance_page(  # noqa: PLR0913 (one parameter per filter)
        self,
        workflow: str | None,
        applied: Positions,
        *,
        status: RunStatus | None,
        error_name: str | None,
        labels: Mapping[str, str],
        updated: TimeRange = ANY_TIME,
        page_size: int,
        cursor: str | None,
    ) -> Page[InstanceFound]:
        """Return a page of instances by workflow, status, error, labels and last update.

        Raises:
            Problem: The cursor is invalid, or the workflow does not exist.
        """
        with cursor_field("cursor"):
            page = await self._workflows.instances(
                workflow,
                status=status,
                error_name=error_name,
                labels=labels,
                updated=updated,
                limit=page_size,
                after=cursor,
            )
        if workflow and not page.rows and not await self._is_known(workflow):
            raise Problem(
                WORKFLOW_NOT_FOUND,
                "expected a workflow that a worker runs or has run, or that is deployed, "
                f"found {workflow[:64]!r}",
                headers=_position(applied),
            )
        return page

    async def list_jobs(
        self, required: Positions, *, task: str | None, page_size: int, cursor: str | None
    ) -> Response[bytes]:
        """Return a page of the jobs that have not ended."""
        applied = await self.wait_until_applied(required)
        with cursor_field("cursor"):
            page = await self._workflows.jobs(task=task, limit=page_size, after=cursor)
        body = JobPage(
            jobs=list(page.rows), has_next_page=page.cursor is not None, cursor=page.cursor
        )
        return response_of(body, applied)

    async def _is_known(self, workflow: str) -> bool:
        if await self._workflows.is_known(workflow):
            return True
        # It may have been deployed so recently that its row is not projected yet.
        if (await self._definitions.catch_up()).newest(workflow) is not None:
            return True
        deployed = await self._deployments.catch_up()
        return any(deployed.workflow(name, workflow) for name in deployed.by_id)

    async def get_instance(
        self, workflow: str, instance_id: str, required: Positions
    ) -> Response[bytes]:
        """Return one instance with all its details."""
        applied = await self.wait_until_applied(required)
        row = await self.find_instance(workflow, instance_id, applied)
        return response_of(row.instance, partition_position(row, applied))

    async def find_instance(
        self, workflow: str, instance_id: str, applied: Positions
    ) -> LocatedInstance:
        """Return the row of an instance.

        Raises:
            Problem: The instance does not exist, or is not projected yet.
        """
        row = await self._workflows.instance(workflow, instance_id)
        if row is None:
            raise Problem(
                INSTANCE_NOT_FOUND,
                f"expected an instance {instance_id[:100]!r} of {workflow[:64]!r}, found none",
                headers=_position(applied),
            )
        return row

    async def get_history(
        self, workflow: str, instance_id: str, query: HistoryQuery, required: Positions
    ) -> Response[bytes]:
        """Return a page of a run's history."""
        if query.page_size > PAGE_MAX and not query.include_trimmed:
            detail = f"pageSize: expected at most {PAGE_MAX} without includeTrimmed"
            raise Problem("invalid_parameter", detail, field="pageSize")
        applied = await self.wait_until_applied(required)
        row = await self.find_instance(workflow, instance_id, applied)
        number = run_number_of(row, query.run_number, applied)
        page = await self._history_page(RunKey(workflow, instance_id, number), query)
        return response_of(page, partition_position(row, applied))

    async def _history_page(self, run: RunKey, query: HistoryQuery) -> HistoryPage:
        # Only steps that are read from the log may have larger pages.
        size, order = min(query.page_size, PAGE_MAX), query.order
        paged: _Paged = {"order": order, "limit": query.page_size, "after": query.steps_cursor}
        with cursor_field("stepsCursor"):
            if query.include_trimmed:
                read = partial(self._read_trimmed, run)
                steps = await self._workflows.steps_with_trimmed(run, read, **paged)
            else:
                steps = await self._workflows.steps(run, **paged)
        with cursor_field("tokensCursor"):
            tokens = await self._workflows.tokens(
                run, order=order, limit=size, after=query.tokens_cursor
            )
        with cursor_field("eventsCursor"):
            events = await self._workflows.events(
                run, order=order, limit=size, after=query.events_cursor
            )
        page = HistoryPage(
            run_number=run.run_number,
            steps=list(steps.rows),
            steps_cursor=steps.cursor,
            steps_has_next_page=steps.cursor is not None,
            tokens=list(tokens.rows),
            tokens_cursor=tokens.cursor,
            tokens_has_next_page=tokens.cursor is not None,
            events=list(events.rows),
            events_cursor=events.cursor,
            events_has_next_page=events.cursor is not None,
        )
        return await self._with_logs(page, run, query) if query.include_logs else page

    async def _read_trimmed(
        self, run: RunKey, partition: int, start: int, forgotten: TrimmedEntries
    ) -> None:
        key = instance_key(run.workflow_name, run.instance_id)
        await self._folds.fold(key, partition, start, forgotten, lambda: None)

    async def _with_logs(self, page: HistoryPage, run: RunKey, query: HistoryQuery) -> HistoryPage:
        with cursor_field("logsCursor"):
            logs = await self._workflows.logs(
                run,
                level=query.log_level,
                category=query.log_category,
                order=query.order,
                limit=min(query.page_size, PAGE_MAX),
                after=query.logs_cursor,
            )
        return msgspec.structs.replace(
            page,
            logs=list(logs.rows),
            logs_cursor=logs.cursor,
            logs_has_next_page=logs.cursor is not None,
        )


def run_number_of(row: LocatedInstance, requested: int | None, applied: Positions) -> int:
    """Return the requested run number; that of the current run if None was requested.

    Raises:
        Problem: The instance has no such run.
    """
    latest = row.instance.meta.run_number
    number = latest if requested is None else requested
    if number > latest:
        raise Problem(
            "RUN_NOT_FOUND",
            f"runNumber: expected 0 to {latest}, found {number}",
            headers=_position(applied),
            field="runNumber",
        )
    return number


def partition_position(row: LocatedInstance, applied: Positions) -> dict[int, int]:
    """Return the last applied offset of an instance's partition."""
    return {row.partition: max(row.offset, applied.get(row.partition, -1))}


def response_of(
    body: Answer,
    positions: Positions,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response[bytes]:
    """Encode a response, and state its positions in a header."""
    return Response(
        encode(body),
        status_code=status,
        media_type=JSON,
        headers={**_position(positions), **(headers or {})},
    )


def _position(positions: Positions) -> dict[str, str]:
    text = format_positions(positions)
    return {HEADER: text} if text else {}


@contextmanager
def cursor_field(field: str) -> Iterator[None]:
    """Convert InvalidCursor to a Problem that names the field of the cursor."""
    try:
        yield
    except InvalidCursor as error:
        raise Problem("invalid_cursor", f"{field}: {error.message}", field=field) from error
