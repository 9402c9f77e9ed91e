"""What is read of workflows: names, listings, instances, histories."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final, TypedDict

import msgspec
from litestar import Response

from headwater.gateway.http.ports import DeploymentLog
from headwater.gateway.http.problems import Problem
from headwater.gateway.workflows import wire
from headwater.gateway.workflows.folding import Folds
from headwater.gateway.workflows.freshness import Freshness
from headwater.gateway.workflows.graphs import Definitions
from headwater.gateway.workflows.parameters import (
    PAGE_MAX,
    HistoryAsked,
    ListingAsked,
    read_labels,
    read_within,
)
from headwater.gateway.workflows.positions import HEADER, Positions, stated
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
    HistoryPage,
    InstanceFound,
    InstancePage,
    JobPage,
    WorkflowList,
)
from headwater.schemas.failures import INSTANCE_NOT_FOUND, WORKFLOW_NOT_FOUND
from headwater.schemas.history import instance_key
from headwater.schemas.statuses import RunStatus

#: Seconds that a reader waits for the position that it asks for.
_REACHED_WITHIN_S: Final = 10.0

JSON: Final = "application/json"


class _Paged(TypedDict):
    order: Order
    limit: int
    after: str | None


class Reading:
    """Answers reads from Postgres, no older than they ask for."""

    def __init__(
        self,
        workflows: Workflows,
        freshness: Freshness,
        definitions: Definitions,
        deployments: DeploymentLog,
        folds: Folds,
    ) -> None:
        self._workflows = workflows
        self._freshness = freshness
        self._definitions = definitions
        self._deployments = deployments
        self._folds = folds

    async def fresh(self, wanted: Positions) -> Positions:
        """Waits for positions; says which there are.

        Errors: Problem when they do not come in time.
        """
        if not wanted:
            await self._freshness.look()
            wanted = self._freshness.lost()
        if wanted and not await self._freshness.reached(wanted, _REACHED_WITHIN_S):
            raise Problem(
                "position_not_reached",
                f"expected {stated(wanted)} to be applied within {_REACHED_WITHIN_S:.0f} s, found "
                f"{stated(self._freshness.applied()) or 'nothing'}; usual causes: no projector "
                "runs, or it lags; or there is no such position",
            )
        return self._freshness.applied()

    def applied(self) -> Positions:
        """Which positions there are, as far as is known."""
        return self._freshness.applied()

    async def names(self, wanted: Positions) -> Response[bytes]:
        """The workflows that there are."""
        applied = await self.fresh(wanted)
        return answer(WorkflowList(workflows=await self._workflows.registered()), applied)

    async def listing(
        self,
        workflow: str | None,
        asked: ListingAsked,
        wanted: Positions,
    ) -> Response[bytes]:
        """A page of instances, of a workflow or of all."""
        labels = read_labels(asked.label or ())
        updated = read_within(asked.updated_since, asked.updated_before)
        applied = await self.fresh(wanted)
        page = await self.page(
            workflow,
            applied,
            status=asked.status,
            labels=labels,
            updated=updated,
            page_size=asked.page_size,
            cursor=asked.cursor,
        )
        found = InstancePage(
            instances=list(page.rows), has_next_page=page.cursor is not None, cursor=page.cursor
        )
        return answer(found, applied)

    async def page(  # noqa: PLR0913 (one parameter a filter)
        self,
        workflow: str | None,
        applied: Positions,
        *,
        status: RunStatus | None,
        labels: Mapping[str, str],
        updated: TimeRange = ANY_TIME,
        page_size: int,
        cursor: str | None,
    ) -> Page[InstanceFound]:
        """Instances, of all workflows without one, that have a status and labels.

        Errors: Problem, also for a workflow that nobody knows.
        """
        with naming("cursor"):
            page = await self._workflows.instances(
                workflow,
                status=status,
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

    async def jobs(
        self, wanted: Positions, *, task: str | None, page_size: int, cursor: str | None
    ) -> Response[bytes]:
        """A page of the jobs that have not ended."""
        applied = await self.fresh(wanted)
        with naming("cursor"):
            page = await self._workflows.jobs(task=task, limit=page_size, after=cursor)
        found = JobPage(
            jobs=list(page.rows), has_next_page=page.cursor is not None, cursor=page.cursor
        )
        return answer(found, applied)

    async def _is_known(self, workflow: str) -> bool:
        if await self._workflows.is_known(workflow):
            return True
        # It may have been deployed a moment ago, before its row is there.
        if (await self._definitions.catch_up()).newest(workflow) is not None:
            return True
        deployed = await self._deployments.catch_up()
        return any(deployed.workflow(each, workflow) for each in deployed.by_id)

    async def instance(self, workflow: str, instance_id: str, wanted: Positions) -> Response[bytes]:
        """An instance, whole."""
        applied = await self.fresh(wanted)
        found = await self.find(workflow, instance_id, applied)
        return answer(found.instance, own(found, applied))

    async def find(self, workflow: str, instance_id: str, applied: Positions) -> LocatedInstance:
        """The row of an instance.

        Errors: Problem when there is none (yet).
        """
        found = await self._workflows.instance(workflow, instance_id)
        if found is None:
            raise Problem(
                INSTANCE_NOT_FOUND,
                f"expected an instance {instance_id[:100]!r} of {workflow[:64]!r}, found none",
                headers=_position(applied),
            )
        return found

    async def history(
        self, workflow: str, instance_id: str, asked: HistoryAsked, wanted: Positions
    ) -> Response[bytes]:
        """A part of a run's history."""
        if asked.page_size > PAGE_MAX and not asked.include_trimmed:
            detail = f"pageSize: expected at most {PAGE_MAX} without includeTrimmed"
            raise Problem("invalid_parameter", detail, field="pageSize")
        applied = await self.fresh(wanted)
        found = await self.find(workflow, instance_id, applied)
        number = run_number_of(found, asked.run_number, applied)
        shown = await self._history(RunKey(workflow, instance_id, number), asked)
        return answer(shown, own(found, applied))

    async def _history(self, run: RunKey, asked: HistoryAsked) -> HistoryPage:
        # Of all but steps that are read from the log, a page is as small as any.
        size, order = min(asked.page_size, PAGE_MAX), asked.order
        paged: _Paged = {"order": order, "limit": asked.page_size, "after": asked.steps_cursor}
        with naming("stepsCursor"):
            if asked.include_trimmed:
                read = partial(self._read_forgotten, run)
                steps = await self._workflows.steps_with_trimmed(run, read, **paged)
            else:
                steps = await self._workflows.steps(run, **paged)
        with naming("tokensCursor"):
            tokens = await self._workflows.tokens(
                run, order=order, limit=size, after=asked.tokens_cursor
            )
        with naming("eventsCursor"):
            events = await self._workflows.events(
                run, order=order, limit=size, after=asked.events_cursor
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
        return await self._with_logs(page, run, asked) if asked.include_logs else page

    async def _read_forgotten(
        self, run: RunKey, partition: int, start: int, forgotten: TrimmedEntries
    ) -> None:
        key = instance_key(run.workflow_name, run.instance_id)
        await self._folds.fold(key, partition, start, forgotten, lambda: None)

    async def _with_logs(self, page: HistoryPage, run: RunKey, asked: HistoryAsked) -> HistoryPage:
        with naming("logsCursor"):
            logs = await self._workflows.logs(
                run,
                level=asked.log_level,
                category=asked.log_category,
                order=asked.order,
                limit=min(asked.page_size, PAGE_MAX),
                after=asked.logs_cursor,
            )
        return msgspec.structs.replace(
            page,
            logs=list(logs.rows),
            logs_cursor=logs.cursor,
            logs_has_next_page=logs.cursor is not None,
        )


def run_number_of(found: LocatedInstance, asked: int | None, applied: Positions) -> int:
    """The number of the run that is asked for, the current one by default.

    Errors: Problem when there is no such run.
    """
    latest = found.instance.meta.run_number
    number = latest if asked is None else asked
    if number > latest:
        raise Problem(
            "RUN_NOT_FOUND",
            f"runNumber: expected 0 to {latest}, found {number}",
            headers=_position(applied),
            field="runNumber",
        )
    return number


def own(found: LocatedInstance, applied: Positions) -> dict[int, int]:
    """How far the partition of an instance is applied."""
    return {found.partition: max(found.offset, applied.get(found.partition, -1))}


def answer(
    found: Answer,
    positions: Positions,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response[bytes]:
    """An answer that states positions."""
    return Response(
        wire.encode(found),
        status_code=status,
        media_type=JSON,
        headers={**_position(positions), **(headers or {})},
    )


def _position(positions: Positions) -> dict[str, str]:
    text = stated(positions)
    return {HEADER: text} if text else {}


@contextmanager
def naming(field: str) -> Iterator[None]:
    """Names the field that a cursor came in."""
    try:
        yield
    except InvalidCursor as error:
        raise Problem("invalid_cursor", f"{field}: {error.message}", field=field) from error
