"""Queries of runs: instances in the terms of `/v1`, identified by their ids alone."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, LiteralString, TypeVar

import msgspec
from psycopg import sql

from headwater.processors.queue_messages import DELIVERY, QUEUE_LABEL
from headwater.processors.rows.answers import failure_of, made, raw
from headwater.projections.postgres.connections import PooledReader, Row, bounded
from headwater.projections.postgres.statements import filled, statement, template
from headwater.projections.workflows.answers import Page
from headwater.projections.workflows.listings import (
    NAMES_WITH_INSTANCES,
    InstanceCursor,
    Listing,
    rows_of,
)
from headwater.schemas.statuses import RunState, RunStatus
from headwater.schemas.v1_answers import QueueListed, Run, RunListed

R = TypeVar("R", bound=RunListed)

_STATES: Final[Mapping[str, RunState]] = {
    RunStatus.ACTIVE: RunState.RUNNING,
    RunStatus.WAITING: RunState.RUNNING,
    RunStatus.PAUSED: RunState.RUNNING,
    RunStatus.COMPLETE: RunState.COMPLETED,
    RunStatus.ERRORED: RunState.FAILED,
    RunStatus.TERMINATED: RunState.CANCELLED,
}
#: Large columns of a listing.
_PAYLOAD: Final[LiteralString] = ", i.params::text as input, i.output::text as output"
#: Queues of a listing.
_QUEUES_MAX: Final = 1_000
_WAITS_FOR_SLOT: Final = template("run_waits")
_IN_STATE: Final[Mapping[RunState, LiteralString]] = {
    RunState.PENDING: "and {}",
    RunState.RUNNING: "and i.status in ('active', 'waiting', 'paused') and not {}",
    RunState.COMPLETED: "and i.status = 'complete'",
    RunState.FAILED: "and i.status = 'errored'",
    RunState.CANCELLED: "and i.status = 'terminated'",
}
_FIND: Final = filled("run", waits=_WAITS_FOR_SLOT, workflows=NAMES_WITH_INSTANCES)
_FIND_OF_WORKFLOW: Final = filled(
    "run",
    waits=_WAITS_FOR_SLOT,
    workflows=sql.SQL("select {}::text").format(sql.Placeholder("workflow")),
)


class FoundRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run, and the position of the last history record that was applied to it."""

    run: Run
    partition: int
    offset: int


class Runs:
    """Reads runs. All methods raise StoreUnavailable."""

    def __init__(self, reader: PooledReader) -> None:
        self._reader = reader

    async def page(
        self,
        *,
        workflow: str | None = None,
        state: RunState | None = None,
        deployment: str | None = None,
        limit: int,
        after: str | None = None,
        payload: bool = False,
    ) -> Page[RunListed]:
        """Return runs of authors' workflows by time of creation, newest first.

        With `payload`, they are `Run`s, with inputs and outputs.

        Raises:
            InvalidCursor: The cursor cannot be read.
            ValueError: The limit is out of range.
        """
        limit, parameters = bounded(limit), _LISTING.begin("desc", after)
        parameters |= {"workflow": workflow, "deployment": deployment}
        query = _listing(workflow is not None, state, deployment is not None, payload)
        rows = await rows_of(self._reader, query, parameters, limit)
        listing = _WHOLE if payload else _LISTING
        return listing.page(rows[:limit], more=len(rows) > limit)

    async def queues(self) -> list[QueueListed]:
        """Return queues with messages that are not delivered yet, by name."""
        rows = await self._reader.answers(
            statement("queues"), workflow=DELIVERY, label=QUEUE_LABEL, limit=_QUEUES_MAX
        )
        return [QueueListed(**row) for row in rows]

    async def find(self, run_id: str, workflow: str | None = None) -> list[FoundRun]:
        """Return the runs with an id, which may exist in several workflows.

        With a workflow, only its run is returned.
        """
        query = _FIND if workflow is None else _FIND_OF_WORKFLOW
        rows = await self._reader.answers(query, run_id=run_id, workflow=workflow)
        return [
            FoundRun(
                run=_whole(row),
                partition=row["partition"],
                offset=row["offset"],
            )
            for row in rows
        ]


def state_of(status: str, *, waits: bool = False) -> RunState:
    """Return the state of a run. A run that waits for its slot is pending."""
    return RunState.PENDING if waits else _STATES.get(status, RunState.RUNNING)


@cache
def _listing(
    of_workflow: bool, state: RunState | None, of_deployment: bool, payload: bool
) -> bytes:
    """Return the listing with the requested filters as text, so that Postgres uses indexes."""
    conditions: list[sql.Composable] = []
    if state is not None:
        conditions.append(sql.SQL(_IN_STATE[state]).format(_WAITS_FOR_SLOT))
    if of_deployment:
        conditions.append(sql.SQL("and deployment_id = {}").format(sql.Placeholder("deployment")))
    name = sql.SQL("select {}::text").format(sql.Placeholder("workflow"))
    return filled(
        "runs",
        waits=_WAITS_FOR_SLOT,
        workflows=name if of_workflow else NAMES_WITH_INSTANCES,
        filter=sql.SQL(" ").join(conditions),
        payload=sql.SQL(_PAYLOAD if payload else ""),
    )


def _made(kind: type[R], row: Row, **more: Any) -> R:  # noqa: ANN401 (fields of a response)
    waits: bool = row["waits"]
    return made(
        kind,
        row,
        run_id=row["instance_id"],
        status=state_of(row["status"], waits=waits),
        error=failure_of(row),
        **more,
    )


def _listed(row: Row) -> RunListed:
    return _made(RunListed, row)


def _whole(row: Row) -> Run:
    return _made(Run, row, input=raw(row["input"]), output=raw(row["output"]))


_LISTING: Final = Listing("runs", InstanceCursor, _listed)
_WHOLE: Final[Listing[RunListed]] = Listing("runs", InstanceCursor, _whole)
