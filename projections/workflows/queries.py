"""What can be asked of workflows: instances, their runs, and the history of a run.

Pages follow the order in which things happened, which no clock has a say in but for instances, and
a cursor names the last row that was seen: rows that come meanwhile move nothing. Who follows a run
asks for its changes instead, which come in the order of the log.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from headwater.projections.postgres.reader import PooledReader, Row, bounded
from headwater.projections.postgres.statements import filled, statement
from headwater.projections.projector.offsets import next_offsets
from headwater.projections.workflows.answers import (
    BY_RANK,
    Changed,
    Changes,
    OpenJob,
    Page,
    Placed,
    RunKey,
    concurrency_of,
    event_of,
    found_of,
    instance_of,
    instance_status_of,
    job_of,
    line_of,
    raw,
    step_of,
    token_of,
)
from headwater.projections.workflows.history import PROJECTION
from headwater.projections.workflows.listings import (
    DECLARED,
    NAMES_WITH_INSTANCES,
    OF_AUTHORS,
    STANDING,
    Listing,
    OfEvent,
    OfInstance,
    OfJob,
    OfLine,
    OfStep,
    OfToken,
    Order,
    page_of,
    rows_of,
)
from headwater.projections.workflows.untrimmed import Forgotten
from headwater.schemas.answers import (
    Event,
    InstanceFound,
    InstanceStatus,
    JobListed,
    LogLine,
    Step,
    Token,
    WorkflowListed,
)
from headwater.schemas.statuses import RunStatus
from headwater.schemas.topics import WORKFLOW_HISTORY

__all__ = [
    "CHANGES_MAX",
    "Beginning",
    "Changed",
    "Changes",
    "OpenJob",
    "Order",
    "Page",
    "Placed",
    "RunKey",
    "Workflows",
]


#: Offsets have 15 digits in the ids of lines, which is enough for ever.
_OFFSET_MAX: Final = 10**15 - 2
#: Bytes of the inputs of jobs in one answer, but for that of a single job.
_INPUTS_MAX: Final = 4 * 1024 * 1024
#: Rows beside what is read from the log, which may be many more.
_STEPS_MAX: Final = 100
#: Rows of one answer to who follows a run.
CHANGES_MAX: Final = 500


class Within(msgspec.Struct, frozen=True):
    """From a time on, and before another; None for any."""

    since: datetime | None = None
    before: datetime | None = None


ALWAYS: Final = Within()


class Beginning(msgspec.Struct, frozen=True):
    """Where in the history the first record lies that the state of a run comes from.

    Shape:  run_number is that of the run; the record may be of one that it retries.
    """

    run_number: int
    partition: int
    offset: int


#: An instance, by its key.
INSTANCE: Final = filled("workflow_instance", standing=STANDING)
_REGISTERED: Final = filled(
    "workflow_names",
    declared=DECLARED,
    of_authors=OF_AUTHORS,
    of_instances=NAMES_WITH_INSTANCES,
)
_IS_KNOWN: Final = filled("workflow_is_known", declared=DECLARED, of_authors=OF_AUTHORS)
_LIMITS: Final = filled("workflow_limits", declared=DECLARED)


_INSTANCES: Final = Listing("workflow_instances", OfInstance, found_of)
_INSTANCES_OF_ALL: Final = Listing("instances_of_all", OfInstance, found_of)
_STEPS: Final = Listing("workflow_steps", OfStep, step_of)
_TOKENS: Final = Listing("workflow_tokens", OfToken, token_of)
_EVENTS: Final = Listing("workflow_events", OfEvent, event_of)
_LINES: Final = Listing("workflow_logs", OfLine, line_of)
_JOBS: Final = Listing("jobs", OfJob, job_of)


class Workflows:
    """Reads what was projected of workflows.

    Errors: StoreUnavailable from every method; InvalidCursor from those that take one, ValueError
            for a limit out of range.
    """

    def __init__(self, reader: PooledReader) -> None:
        self._reader = reader

    async def registered(self) -> list[WorkflowListed]:
        """The workflows of authors: in code that owners have or had, or that is deployed; graphs.

        Shape:  by name, each with the JSON Schema of its params and its limit of concurrency, if it
                declares them.
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
        """Whether there is such a workflow; also one that comes with Headwater."""
        rows = await self._reader.answers(_IS_KNOWN, name=workflow_name)
        return any(row["known"] for row in rows)

    async def slots(self) -> dict[str, tuple[int, int]]:
        """How many runs have a slot, and how many wait for one, by workflow that has a limit."""
        rows = await self._reader.answers(_LIMITS)
        return {row["name"]: (row["held"], row["waiting"]) for row in rows}

    async def instances(  # noqa: PLR0913 (one parameter a filter)
        self,
        workflow_name: str | None,
        *,
        status: RunStatus | None = None,
        labels: Mapping[str, str] | None = None,
        updated: Within = ALWAYS,
        order: Order = "desc",
        limit: int,
        after: str | None = None,
    ) -> Page[InstanceFound]:
        """Instances by the time of their creation, the newest first.

        Shape:  of a workflow, or with None of all that authors have written; those alone that have
                a status, all of these labels, and were updated within a time.
        """
        filters = {
            "status": status,
            "labels": msgspec.json.encode(labels).decode() if labels else None,
            "updated_since": updated.since,
            "updated_before": updated.before,
        }
        listing = _INSTANCES if workflow_name else _INSTANCES_OF_ALL
        bound = {"workflow": workflow_name}
        return await page_of(
            self._reader, listing, bound, filters=filters, order=order, limit=limit, after=after
        )

    async def instance(self, workflow_name: str, instance_id: str) -> Placed | None:
        """An instance; None when there is none (yet)."""
        rows = await self._reader.answers(
            INSTANCE, workflow_name=workflow_name, instance_id=instance_id
        )
        return instance_of(rows[0]) if rows else None

    async def statuses(
        self, instances: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], InstanceStatus]:
        """How instances stand, by their workflows and ids; those that there are none of lack."""
        rows = await self._reader.answers(
            statement("workflow_statuses"),
            workflow_names=[workflow for workflow, _ in instances],
            instance_ids=[instance_id for _, instance_id in instances],
        )
        return {(row["workflow_name"], row["instance_id"]): instance_status_of(row) for row in rows}

    async def beginning(
        self, workflow_name: str, instance_id: str, run_number: int
    ) -> Beginning | None:
        """Where a run begins in the history; None if there is no such run (yet)."""
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
        """Entries of a run, in the order in which they were first reached."""
        return await page_of(
            self._reader, _STEPS, _named(run), order=order, limit=limit, after=after
        )

    async def steps_and_forgotten(
        self,
        run: RunKey,
        read: Callable[[int, int, Forgotten], Awaitable[None]],
        *,
        order: Order = "asc",
        limit: int,
        after: str | None = None,
    ) -> Page[Step]:
        """Entries of a run, also those that its loops have forgotten.

        Shape:  `read` tells those, from a partition and an offset of the history on. It comes after
                the rows: what a loop forgets between the two is told, and not missed.
        """
        limit = bounded(limit)
        place, bound = _STEPS.begin(order, after), _named(run)
        most = min(limit, _STEPS_MAX)
        rows = await rows_of(self._reader, _STEPS.query(order), bound | place, most)
        begins = await self._reader.answers(statement("workflow_run_place"), **bound)
        behind = msgspec.convert((place["ordinal"], place["sequence"]), tuple[int, int])
        forgotten = Forgotten(run, behind, order=order, limit=limit)
        for begin in begins:
            await read(begin["partition"], begin["offset"], forgotten)
        shown, more = forgotten.beside(rows, are_cut=len(rows) > most)
        return _STEPS.page(shown, more=more)

    async def tokens(
        self, run: RunKey, *, order: Order = "asc", limit: int, after: str | None = None
    ) -> Page[Token]:
        """Tokens of a graph's run, in the order of their creation."""
        return await page_of(
            self._reader, _TOKENS, _named(run), order=order, limit=limit, after=after
        )

    async def events(
        self, run: RunKey, *, order: Order = "asc", limit: int, after: str | None = None
    ) -> Page[Event]:
        """Events that a run has received, in the order in which they came."""
        return await page_of(
            self._reader, _EVENTS, _named(run), order=order, limit=limit, after=after
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
        """Lines of a run, in the order in which they were written."""
        filters = {"level": level, "category": category}
        return await page_of(
            self._reader, _LINES, _named(run), filters=filters,
            order=order, limit=limit, after=after,
        )  # fmt: skip

    async def next_offsets(self) -> dict[int, int]:
        """The first offset of each partition of `workflow-history` that is not applied yet."""
        return await next_offsets(self._reader, PROJECTION, WORKFLOW_HISTORY)

    async def changes(
        self, workflow_name: str, instance_id: str, after: int, *, limit: int = CHANGES_MAX
    ) -> Changes | None:
        """What changed in the current run since the record at an offset; None without an instance.

        Shape:  after -1 comes all of the run. At most `limit` rows, and the instance, unless a
                single record has changed more: records are not divided.
        """
        found = await self._reader.answers(
            statement("workflow_changes"),
            workflow_name=workflow_name,
            instance_id=instance_id,
            after=min(max(after, -1), _OFFSET_MAX),
            limit=bounded(limit),
        )
        if not found:
            return None
        first = found[0]
        return Changes(
            run_number=first["run_number"],
            run_offset=first["run_offset"],
            rows=tuple(_changed(row) for row in found if row["row"] is not None),
            offset=first["through"],
            more=first["more"],
        )

    async def open_jobs(
        self, types: Sequence[str], given: Sequence[str], *, limit: int
    ) -> list[OpenJob]:
        """Jobs of these types that nobody has taken, the longest waiting first.

        Shape:  those that are being given away are left out, by the keys that workers have; at most
                limit, of at most some MiB of input together, but for the first.
        """
        rows = await self._reader.answers(
            statement("open_jobs"),
            types=list(types),
            given=list(given),
            limit=bounded(limit),
            bytes=_INPUTS_MAX,
        )
        return [OpenJob(**row) for row in rows]

    async def jobs(
        self, *, task: str | None = None, limit: int, after: str | None = None
    ) -> Page[JobListed]:
        """Jobs that have not ended, of one type or of all, the oldest first."""
        return await page_of(
            self._reader, _JOBS, {}, filters={"task": task}, order="asc", limit=limit, after=after
        )


def _changed(row: Row) -> Changed:
    return Changed(offset=row["offset"], row=BY_RANK[row["rank"]](msgspec.json.decode(row["row"])))


def _named(run: RunKey) -> dict[str, object]:
    return msgspec.structs.asdict(run)
