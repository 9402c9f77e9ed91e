"""What can be asked of workflows: instances, their runs, and the history of a run.

Pages follow the order in which things happened, which no clock has a say in but for instances, and
a cursor names the last row that was seen: rows that come meanwhile move nothing. Who follows a run
asks for its changes instead, which come in the order of the log.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Final, Literal, LiteralString, TypeAlias, TypeVar

import msgspec
from psycopg import sql

from headwater.projections.errors import InvalidCursor, RecordRefused
from headwater.projections.postgres.cursors import pack, unpack
from headwater.projections.postgres.reader import PooledReader, Row, bounded
from headwater.projections.postgres.statements import filled, statement, template
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
    "NAMES_WITH_INSTANCES",
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

Order: TypeAlias = Literal["asc", "desc"]
R = TypeVar("R", bound=msgspec.Struct)
P = TypeVar("P", bound=msgspec.Struct)

#: The numbers that Postgres's bigint can hold.
_NUMBER_MIN: Final = -(2**63)
_NUMBER_MAX: Final = 2**63 - 1
#: Offsets have 15 digits in the ids of lines, which is enough for ever.
_OFFSET_MAX: Final = 10**15 - 2
#: Bytes of the inputs of jobs in one answer, but for that of a single job.
_INPUTS_MAX: Final = 4 * 1024 * 1024
#: Rows beside what is read from the log, which may be many more.
_STEPS_MAX: Final = 100
#: Conditions of listings that are not about a column that is equal.
_CONDITIONS: Final[Mapping[str, LiteralString]] = {
    "labels": "and {} @> {}::jsonb",
    "updated_since": "and updated_at >= {1}::timestamptz",
    "updated_before": "and updated_at < {1}::timestamptz",
}
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


# --- places: what a cursor holds, named as the query's parameters -------------------------------


class _OfInstance(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    created_at: datetime
    workflow_name: str
    instance_id: str


class _OfStep(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    ordinal: int
    sequence: int


class _OfToken(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    id: int


class _OfJob(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    created_at: datetime
    workflow_name: str
    instance_id: str
    run_number: int
    id: int


class _OfEvent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    sequence: int


class _OfLine(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    id: str


#: Workflows of authors, without those that come with Headwater.
_OF_AUTHORS: Final = sql.SQL(
    "not starts_with(name, 'headwater-') "
    "and name not in ('terra-backfill', 'terra-import', 'terra-lab', 'terra-reconcile')"
)
#: The workflows that owners and the active deployment declare.
_DECLARED: Final = template("declared_workflows")
_STANDING: Final = template("workflow_standing").format(declared=_DECLARED)
#: An instance, by its key.
INSTANCE: Final = filled("workflow_instance", standing=_STANDING)
#: The workflows of authors that have instances, by their names.
NAMES_WITH_INSTANCES: Final = template("workflow_names_of_instances").format(of_authors=_OF_AUTHORS)
_REGISTERED: Final = filled(
    "workflow_names",
    declared=_DECLARED,
    of_authors=_OF_AUTHORS,
    of_instances=NAMES_WITH_INSTANCES,
)
_IS_KNOWN: Final = filled("workflow_is_known", declared=_DECLARED, of_authors=_OF_AUTHORS)
_LIMITS: Final = filled("workflow_limits", declared=_DECLARED)
#: Which workflows a listing is of.
_WORKFLOWS: Final[Mapping[str, sql.Composable]] = {
    "workflow_instances": sql.SQL("select {}::text").format(sql.Placeholder("workflow_name")),
    "instances_of_all": NAMES_WITH_INSTANCES,
}

#: Where pages begin, by order: what no row comes before.
_BEGIN: Final[dict[type[msgspec.Struct], dict[Order, dict[str, object]]]] = {
    _OfInstance: {
        "asc": {"created_at": "-infinity", "workflow_name": "", "instance_id": ""},
        "desc": {"created_at": "infinity", "workflow_name": "", "instance_id": ""},
    },
    _OfStep: {
        "asc": {"ordinal": -1, "sequence": _NUMBER_MIN},
        "desc": {"ordinal": _NUMBER_MAX, "sequence": _NUMBER_MAX},
    },
    _OfToken: {"asc": {"id": -1}, "desc": {"id": _NUMBER_MAX}},
    _OfJob: {
        "asc": {
            "created_at": "-infinity",
            "workflow_name": "",
            "instance_id": "",
            "run_number": -1,
            "id": -1,
        }
    },
    _OfEvent: {"asc": {"sequence": _NUMBER_MIN}, "desc": {"sequence": _NUMBER_MAX}},
    _OfLine: {"asc": {"id": ""}, "desc": {"id": "~"}},
}


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
        wanted = msgspec.json.encode(labels).decode() if labels else None
        filters: dict[str, object] = {
            "status": status,
            "labels": wanted,
            "updated_since": updated.since,
            "updated_before": updated.before,
        }
        name = "workflow_instances" if workflow_name else "instances_of_all"
        place = _place(_OfInstance, order, after)
        bound = filters | place | {"workflow_name": workflow_name}
        bound["after_workflow"] = place["workflow_name"]
        return await self._page(_query(name, order, **filters), bound, found_of, _OfInstance, limit)

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
        bound = msgspec.structs.asdict(run) | _place(_OfStep, order, after)
        return await self._page(_query("workflow_steps", order), bound, step_of, _OfStep, limit)

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
        place = _place(_OfStep, order, after)
        bound = msgspec.structs.asdict(run)
        most = min(limit, _STEPS_MAX)
        rows = await self._rows(_query("workflow_steps", order), bound | place, most)
        begins = await self._reader.answers(statement("workflow_run_place"), **bound)
        behind = msgspec.convert((place["ordinal"], place["sequence"]), tuple[int, int])
        forgotten = Forgotten(run, behind, order=order, limit=limit)
        for begin in begins:
            await read(begin["partition"], begin["offset"], forgotten)
        shown, more = forgotten.beside(rows, are_cut=len(rows) > most)
        return _page_of(shown, step_of, _OfStep, more=more)

    async def tokens(
        self, run: RunKey, *, order: Order = "asc", limit: int, after: str | None = None
    ) -> Page[Token]:
        """Tokens of a graph's run, in the order of their creation."""
        bound = msgspec.structs.asdict(run) | _place(_OfToken, order, after)
        return await self._page(_query("workflow_tokens", order), bound, token_of, _OfToken, limit)

    async def events(
        self, run: RunKey, *, order: Order = "asc", limit: int, after: str | None = None
    ) -> Page[Event]:
        """Events that a run has received, in the order in which they came."""
        bound = msgspec.structs.asdict(run) | _place(_OfEvent, order, after)
        return await self._page(_query("workflow_events", order), bound, event_of, _OfEvent, limit)

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
        query = _query("workflow_logs", order, level=level, category=category)
        bound = msgspec.structs.asdict(run) | {"level": level, "category": category}
        place = _place(_OfLine, order, after)
        return await self._page(query, bound | place, line_of, _OfLine, limit)

    async def next_offset(self, partition: int) -> int:
        """The first offset of a partition of `workflow-history` that is not applied yet."""
        rows = await self._reader.answers(
            statement("next_offset"),
            projection=PROJECTION,
            topic=WORKFLOW_HISTORY,
            partition=partition,
        )
        return rows[0]["next_offset"] if rows else 0

    async def next_offsets(self) -> dict[int, int]:
        """The first offset of each partition of `workflow-history` that is not applied yet.

        Shape:  partitions that no projector has seen yet are missing.
        """
        rows = await self._reader.answers(
            statement("next_offsets"), projection=PROJECTION, topic=WORKFLOW_HISTORY
        )
        return {row["partition"]: row["next_offset"] for row in rows}

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
        query = _query("jobs", "asc", task=task)
        bound = {"task": task} | _place(_OfJob, "asc", after)
        return await self._page(query, bound, job_of, _OfJob, limit)

    async def _page(
        self, query: bytes, bound: Row, answer: Callable[[Row], R], place: type[P], limit: int
    ) -> Page[R]:
        limit = bounded(limit)
        return _cut(await self._rows(query, bound, limit), answer, place, limit)

    async def _rows(self, query: bytes, bound: Row, limit: int) -> Sequence[Row]:
        """The rows of a page, and one more if there is one: it tells that something is left."""
        try:
            return await self._reader.answers(query, **bound, limit=limit + 1)
        except RecordRefused as error:
            raise InvalidCursor(
                "expected a cursor from an earlier page, found one out of range; start without one"
            ) from error


def _cut(found: Sequence[Row], answer: Callable[[Row], R], place: type[P], limit: int) -> Page[R]:
    return _page_of(found[:limit], answer, place, more=len(found) > limit)


def _page_of(
    shown: Sequence[Row], answer: Callable[[Row], R], place: type[P], *, more: bool
) -> Page[R]:
    last = [shown[-1][name] for name in place.__struct_fields__] if more else None
    return Page(rows=tuple(map(answer, shown)), cursor=None if last is None else pack(last))


def _changed(row: Row) -> Changed:
    return Changed(offset=row["offset"], row=BY_RANK[row["rank"]](msgspec.json.decode(row["row"])))


def _place(place: type[P], order: Order, after: str | None) -> dict[str, object]:
    """Where a page begins, as parameters of its query."""
    if after is None:
        return _BEGIN[place][order]
    return msgspec.structs.asdict(unpack(after, place))


def _query(name: str, order: Order, **filters: object) -> bytes:
    return _filled(name, order, tuple(key for key, value in filters.items() if value is not None))


@cache
def _filled(name: str, order: Order, filters: tuple[str, ...]) -> bytes:
    """A listing in one of its orders, with the filters that are asked for.

    Only so can Postgres tell that an index answers it.
    """
    conditions = [
        sql.SQL(_CONDITIONS.get(each, "and {} = {}")).format(
            sql.Identifier(each), sql.Placeholder(each)
        )
        for each in filters
    ]
    listing = {"workflows": _WORKFLOWS[name], "standing": _STANDING} if name in _WORKFLOWS else {}
    return filled(
        "workflow_instances" if listing else name,
        **listing,
        filter=sql.SQL(" ").join(conditions),
        order=sql.SQL("asc") if order == "asc" else sql.SQL("desc"),
        beyond=sql.SQL(">") if order == "asc" else sql.SQL("<"),
    )
