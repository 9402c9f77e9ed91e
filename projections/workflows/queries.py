"""Queries of workflows: instances, their runs, and the history of a run.

Pages are in the order in which things happened; only instances are ordered by time. A cursor names
the last row that was returned, so new rows do not shift pages. A client that follows a run reads
its changes instead, in the order of the log.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from headwater.processors.rows.answers import (
    event_of,
    log_line_of,
    raw,
    step_of,
    token_of,
    with_iteration_counts,
)
from headwater.projections.postgres.connections import PooledReader, Row, bounded
from headwater.projections.postgres.statements import filled, statement, template
from headwater.projections.postgres.workflow_statements import selected
from headwater.projections.projector.store import next_offsets
from headwater.projections.workflows.answers import (
    BY_RANK,
    Changed,
    Changes,
    LocatedInstance,
    OpenJob,
    Page,
    RunKey,
    concurrency_of,
    instance_of,
    instance_status_of,
    job_of,
    paged_instance_of,
)
from headwater.projections.workflows.history import PROJECTION
from headwater.projections.workflows.listings import (
    CURRENT_STEP,
    DECLARED,
    MESSAGES,
    NAMES_WITH_INSTANCES,
    OF_AUTHORS,
    EventCursor,
    InstanceCursor,
    JobCursor,
    Listing,
    LogCursor,
    Order,
    StepCursor,
    TokenCursor,
    changes_of,
    page_of,
    rows_of,
)
from headwater.projections.workflows.trimmed_entries import TrimmedEntries
from headwater.schemas.answers import (
    GRAPH_EVENTS,
    Event,
    InstanceFound,
    InstanceStatus,
    JobListed,
    LogLine,
    Step,
    Token,
    WorkflowListed,
)
from headwater.schemas.statuses import ENDED, RunStatus
from headwater.schemas.topics import WORKFLOW_HISTORY
from headwater.schemas.workflow_tables import INSTANCE

__all__ = [
    "CHANGES_MAX",
    "FOLLOWED",
    "Beginning",
    "Changed",
    "Changes",
    "LocatedInstance",
    "OpenJob",
    "Order",
    "Page",
    "RunKey",
    "RunToReplay",
    "Workflows",
]


#: Ids of log lines have offsets of 15 digits, far more than a topic can reach.
_OFFSET_MAX: Final = 10**15 - 2
#: Bytes of the inputs of jobs in one response; a single job may exceed it.
_INPUTS_MAX: Final = 4 * 1024 * 1024
#: Rows per page in addition to entries from the log, which may be many more.
_STEPS_MAX: Final = 100
#: Rows of one response to a client that follows a run.
CHANGES_MAX: Final = 500
#: Messages that a client which follows a run receives unless it names others.
FOLLOWED: Final = frozenset(MESSAGES.values())


class TimeRange(msgspec.Struct, frozen=True):
    """Times from `since` to before `before`; None is unlimited."""

    since: datetime | None = None
    before: datetime | None = None


ANY_TIME: Final = TimeRange()


class Beginning(msgspec.Struct, frozen=True):
    """Position of the first record that the state of a run depends on.

    `run_number` is that of the run; the record may belong to an earlier run that it retries.
    """

    run_number: int
    partition: int
    offset: int


class RunToReplay(msgspec.Struct, frozen=True):
    """A run that is replayed before code changes under it, and where its history begins.

    Attributes:
        has_app: Whether workers have the code of its workflow in an app.
    """

    workflow_name: str
    instance_id: str
    run_number: int
    status: RunStatus
    deployment_id: str | None
    partition: int
    has_app: bool
    offset: int

    @property
    def follows_activation(self) -> bool:
        """Whether the run continues on what is activated: it has no code of its own."""
        is_open = self.status not in ENDED
        return is_open and self.deployment_id is None and not self.has_app


#: Reads an instance by its key.
FIND_INSTANCE: Final = filled(
    "workflow_instance", columns=selected(INSTANCE, row="i"), current_step=CURRENT_STEP
)
_REGISTERED: Final = filled(
    "workflow_names",
    declared=DECLARED,
    of_authors=OF_AUTHORS,
    of_instances=NAMES_WITH_INSTANCES,
)
_RUNS_OF_DEPLOYMENTS: Final = filled("runs_of_deployments")
_IS_KNOWN: Final = filled("workflow_is_known", declared=DECLARED, of_authors=OF_AUTHORS)
_LIMITS: Final = filled("workflow_limits", declared=DECLARED)
_SAMPLE_TO_REPLAY: Final = filled("runs_to_replay", chosen=template("sampled_instances"))
_NAMED_TO_REPLAY: Final = filled("runs_to_replay", chosen=template("named_instances"))


class DeploymentRuns(NamedTuple):
    """The runs on a deployment: how many have not ended, and when the latest other one ended."""

    open: int
    last_ended_at: datetime | None


_INSTANCES: Final = Listing("workflow_instances", InstanceCursor, paged_instance_of)
_INSTANCES_OF_ALL: Final = Listing("instances_of_all", InstanceCursor, paged_instance_of)
_STEPS: Final = Listing("workflow_steps", StepCursor, step_of)
_TOKENS: Final = Listing("workflow_tokens", TokenCursor, token_of)
_EVENTS: Final = Listing("workflow_events", EventCursor, event_of)
_LINES: Final = Listing("workflow_logs", LogCursor, log_line_of)
_JOBS: Final = Listing("jobs", JobCursor, job_of)


class Workflows:
    """Reads the projection of workflows.

    All methods raise StoreUnavailable; methods with a cursor raise InvalidCursor; methods with a
    limit raise ValueError if it is out of range.
    """

    def __init__(self, reader: PooledReader) -> None:
        self._reader = reader

    async def registered(self) -> list[WorkflowListed]:
        """Return the authors' workflows by name: declared by workers, deployed, and graphs.

        Each has the JSON Schema of its params and its concurrency limit, if it declares them.
        """
        rows = await self._reader.answers(_REGISTERED)
        limits = {row["name"]: row for row in await self._reader.answers(_LIMITS)}
        return [
            WorkflowListed(
                name=row["name"],
                params_schema=raw(row["params_schema"]),
                concurrency=concurrency_of(limits.get(row["name"])),
            )
            for row in rows
        ]

    async def is_known(self, workflow_name: str) -> bool:
        """Whether there is a workflow of this name, including built-in ones."""
        rows = await self._reader.answers(_IS_KNOWN, name=workflow_name)
        return any(row["known"] for row in rows)

    async def runs_of_deployments(
        self, deployments: Mapping[str, Iterable[str]]
    ) -> dict[str, DeploymentRuns]:
        """Return the numbers of runs that have not ended, by deployment.

        Args:
            deployments: Names of the workflows of each deployment, by its id.
        """
        pairs = [(id_, name) for id_, names in deployments.items() for name in names]
        rows = await self._reader.answers(
            _RUNS_OF_DEPLOYMENTS,
            deployments=[id_ for id_, _ in pairs],
            workflows=[name for _, name in pairs],
        )
        runs = {
            row["deployment_id"]: DeploymentRuns(row["open_runs"], row["last_ended_at"])
            for row in rows
        }
        return dict.fromkeys(deployments, DeploymentRuns(0, None)) | runs

    async def open_by_workflow(self, workflows: Iterable[str]) -> dict[str, int]:
        """Return how many runs have not ended, by workflow; absent if there are none."""
        rows = await self._reader.answers(
            statement("open_runs_of_workflows"), workflows=list(workflows)
        )
        return {row["workflow_name"]: row["runs"] for row in rows}

    async def runs_to_replay(
        self, workflows: Iterable[str], *, open_runs: int, ended_runs: int
    ) -> list[RunToReplay]:
        """Return runs to replay before an activation, the last updated first.

        Args:
            workflows: Their workflows.
            open_runs: How many of the oldest and of the newest open runs of a workflow and status.
            ended_runs: How many of the newest ended runs of a workflow and status.
        """
        rows = await self._reader.answers(
            _SAMPLE_TO_REPLAY, workflows=list(workflows), open=open_runs, ended=ended_runs
        )
        return [RunToReplay(**{**row, "status": RunStatus(row["status"])}) for row in rows]

    async def runs_of_instances(self, workflow: str, ids: Iterable[str]) -> list[RunToReplay]:
        """Return the current runs of instances of a workflow, with where their histories begin."""
        rows = await self._reader.answers(_NAMED_TO_REPLAY, workflow=workflow, instances=list(ids))
        return [RunToReplay(**{**row, "status": RunStatus(row["status"])}) for row in rows]

    async def slots(self) -> dict[str, tuple[int, int]]:
        """Return the runs that hold a slot and those that wait, by workflow with a limit."""
        rows = await self._reader.answers(_LIMITS)
        return {row["name"]: (row["held"], row["waiting"]) for row in rows}

    async def instances(  # noqa: PLR0913 (one parameter per filter)
        self,
        workflow_name: str | None,
        *,
        status: RunStatus | None = None,
        error_name: str | None = None,
        labels: Mapping[str, str] | None = None,
        updated: TimeRange = ANY_TIME,
        order: Order = "desc",
        limit: int,
        after: str | None = None,
    ) -> Page[InstanceFound]:
        """Return instances by time of creation, newest first.

        Args:
            workflow_name: The workflow; None for all workflows of authors.
            status: Only instances with this status.
            error_name: Only instances with an error of this name.
            labels: Only instances with all of these labels.
            updated: Only instances updated within this range.
            order: Order of creation.
            limit: Maximum number of instances.
            after: Cursor of the previous page.
        """
        filters = {
            "status": status,
            "error_name": error_name,
            "labels": msgspec.json.encode(labels).decode() if labels else None,
            "updated_since": updated.since,
            "updated_before": updated.before,
        }
        listing = _INSTANCES if workflow_name else _INSTANCES_OF_ALL
        bound = {"workflow": workflow_name}
        return await page_of(
            self._reader, listing, bound, filters=filters, order=order, limit=limit, after=after
        )

    async def instance(self, workflow_name: str, instance_id: str) -> LocatedInstance | None:
        """Return an instance; None if there is none (yet)."""
        rows = await self._reader.answers(
            FIND_INSTANCE, workflow_name=workflow_name, instance_id=instance_id
        )
        return instance_of(rows[0]) if rows else None

    async def statuses(
        self, instances: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], InstanceStatus]:
        """Return the statuses of instances by workflow and id, without those that do not exist."""
        rows = await self._reader.answers(
            statement("workflow_statuses"),
            workflow_names=[workflow for workflow, _ in instances],
            instance_ids=[instance_id for _, instance_id in instances],
        )
        return {(row["workflow_name"], row["instance_id"]): instance_status_of(row) for row in rows}

    async def beginning(
        self, workflow_name: str, instance_id: str, run_number: int
    ) -> Beginning | None:
        """Return where the history of a run begins; None if there is no such run (yet)."""
        rows = await self._reader.answers(
            statement("workflow_run_beginning"),
            workflow_name=workflow_name,
            instance_id=instance_id,
            run_number=run_number,
        )
        return Beginning(**rows[0]) if rows else None

    async def steps(
        self, run: RunKey, *, order: Order = "asc", limit: int, after: str | None = None
    ) -> Page[Step]:
        """Return entries of a run, in the order in which they were first reached."""
        return await page_of(
            self._reader, _STEPS, _parameters(run), order=order, limit=limit, after=after
        )

    async def steps_with_trimmed(
        self,
        run: RunKey,
        read: Callable[[int, int, TrimmedEntries], Awaitable[None]],
        *,
        order: Order = "asc",
        limit: int,
        after: str | None = None,
    ) -> Page[Step]:
        """Return entries of a run, including those that its loops have trimmed.

        `read` applies the history from a partition and an offset to the trimmed entries. It runs
        after the rows are read, so entries trimmed in between are not missed.
        """
        limit = bounded(limit)
        position, key = _STEPS.begin(order, after), _parameters(run)
        rows_max = min(limit, _STEPS_MAX)
        rows = await rows_of(self._reader, _STEPS.query(order), key | position, rows_max)
        starts = await self._reader.answers(statement("workflow_run_start"), **key)
        sort_key = msgspec.convert((position["ordinal"], position["sequence"]), tuple[int, int])
        trimmed = TrimmedEntries(run, sort_key, order=order, limit=limit)
        for start in starts:
            await read(start["partition"], start["offset"], trimmed)
        shown, more = trimmed.merge_with(rows, are_cut=len(rows) > rows_max)
        return _STEPS.page(shown, more=more)

    async def tokens(
        self, run: RunKey, *, order: Order = "asc", limit: int, after: str | None = None
    ) -> Page[Token]:
        """Return tokens of a graph run, in the order of their creation."""
        page = await page_of(
            self._reader, _TOKENS, _parameters(run), order=order, limit=limit, after=after
        )
        return msgspec.structs.replace(page, rows=tuple(await self._with_counts(run, page.rows)))

    async def _with_counts(self, run: RunKey, tokens: Sequence[Token]) -> list[Token]:
        """Return tokens of a run with the transitions that their ancestors took."""
        shown = {int(token.id) for token in tokens}
        parents = {int(token.parent_token_id) for token in tokens if token.parent_token_id}
        ancestors: Sequence[Row] = ()
        if parents - shown:
            ancestors = await self._reader.answers(
                statement("workflow_token_ancestors"), **_parameters(run), ids=sorted(parents)
            )
        return with_iteration_counts(tokens, ancestors)

    async def events(
        self, run: RunKey, *, order: Order = "asc", limit: int, after: str | None = None
    ) -> Page[Event]:
        """Return events that a run has received, in order of arrival."""
        return await page_of(
            self._reader, _EVENTS, _parameters(run), order=order, limit=limit, after=after
        )

    async def logs(
        self,
        run: RunKey,
        *,
        level: str | None = None,
        category: str | None = None,
        order: Order = "asc",
        limit: int,
        after: str | None = None,
    ) -> Page[LogLine]:
        """Return log lines of a run, in the order in which they were written."""
        filters = {"level": level, "category": category}
        return await page_of(
            self._reader, _LINES, _parameters(run), filters=filters,
            order=order, limit=limit, after=after,
        )  # fmt: skip

    async def next_offsets(self) -> dict[int, int]:
        """Return the next offset to apply of each partition of `workflow-history`."""
        return await next_offsets(self._reader, PROJECTION, WORKFLOW_HISTORY)

    async def changes(
        self,
        workflow_name: str,
        instance_id: str,
        after: int,
        *,
        names: frozenset[str] = FOLLOWED,
        limit: int = CHANGES_MAX,
    ) -> Changes | None:
        """Return what changed in the current run since an offset; None if there is no instance.

        After -1, all of the run is returned. There are at most `limit` rows plus the instance,
        unless a single record changed more: the rows of a record are not split.

        Args:
            workflow_name: The workflow.
            instance_id: The instance.
            after: The offset.
            names: Names of messages, see `listings.changes_of`. The instance is always included.
            limit: Maximum number of rows.
        """
        query = changes_of(names)
        bound = {"names": sorted(names & set(GRAPH_EVENTS))} if names & set(GRAPH_EVENTS) else {}
        rows = await self._reader.answers(
            query,
            **bound,
            workflow_name=workflow_name,
            instance_id=instance_id,
            after=min(max(after, -1), _OFFSET_MAX),
            limit=bounded(limit),
        )
        if not rows:
            return None
        first = rows[0]
        changed = [_changed(row) for row in rows if row["row"] is not None]
        run = RunKey(workflow_name, instance_id, first["run_number"])
        tokens = await self._with_counts(
            run, [change.row for change in changed if isinstance(change.row, Token)]
        )
        counted = iter(tokens)
        return Changes(
            run_number=first["run_number"],
            run_offset=first["run_offset"],
            rows=tuple(
                msgspec.structs.replace(change, row=next(counted))
                if isinstance(change.row, Token)
                else change
                for change in changed
            ),
            offset=first["through"],
            more=first["more"],
        )

    async def open_jobs(
        self, types: Sequence[str], reserved: Sequence[str], *, limit: int
    ) -> list[OpenJob]:
        """Return jobs of these types without a worker, longest waiting first.

        Args:
            types: Types of jobs.
            reserved: Keys of jobs to omit, because they are being assigned.
            limit: Maximum number of jobs. Their inputs are limited to some MiB in total, except
                that the first job is always returned.
        """
        rows = await self._reader.answers(
            statement("open_jobs"),
            types=list(types),
            reserved=list(reserved),
            limit=bounded(limit),
            bytes=_INPUTS_MAX,
        )
        return [OpenJob(**row) for row in rows]

    async def jobs(
        self, *, task: str | None = None, limit: int, after: str | None = None
    ) -> Page[JobListed]:
        """Return jobs that have not ended, of one type or of all, oldest first."""
        return await page_of(
            self._reader, _JOBS, {}, filters={"task": task}, order="asc", limit=limit, after=after
        )


def _changed(row: Row) -> Changed:
    return Changed(offset=row["offset"], row=BY_RANK[row["rank"]](msgspec.json.decode(row["row"])))


def _parameters(run: RunKey) -> dict[str, object]:
    return msgspec.structs.asdict(run)
