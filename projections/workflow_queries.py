"""What can be asked of workflows: instances, their runs, and the history of a run.

JSON of authors comes as the text that it is: to parse it here would alter numbers and spaces.
Pages follow the order in which things happened, which no clock has a say in but for instances, and
a cursor names the last row that was seen: rows that come meanwhile move nothing.
"""

from datetime import datetime
from functools import cache
from typing import Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from psycopg import sql

from projections.cursors import pack, unpack
from projections.errors import InvalidCursor, RecordRefused
from projections.projection import WORKFLOWS
from projections.queries import Reader, Row, bounded
from projections.statements import filled, statement
from schemas.history import Json
from schemas.topics import WORKFLOW_HISTORY

__all__ = [
    "CurrentStep",
    "Event",
    "Instance",
    "InstanceListed",
    "LogLine",
    "Order",
    "Page",
    "Run",
    "RunKey",
    "Step",
    "Workflows",
]

Order: TypeAlias = Literal["asc", "desc"]
R = TypeVar("R", bound=msgspec.Struct)
P = TypeVar("P", bound=msgspec.Struct)

#: The largest number that Postgres's bigint can hold.
_NUMBER_MAX: Final = 2**63 - 1


class RunKey(msgspec.Struct, frozen=True):
    """Which run."""

    workflow_name: str
    instance_id: str
    run_number: int


class Page(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """Rows; `cursor` continues behind them in the same order, None when there are no more."""

    rows: tuple[R, ...]
    cursor: str | None


class _Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands."""

    run_number: int
    status: str
    output: Json | None
    error_name: str | None
    error_message: str | None
    error_detail: Json | None
    updated_at: datetime
    started_at: datetime
    completed_at: datetime | None


class Run(_Outcome, frozen=True, kw_only=True):
    """A run of an instance."""

    params: Json


class InstanceListed(_Outcome, frozen=True, kw_only=True):
    """An instance in its current run; the position is that of the last record applied."""

    workflow_name: str
    instance_id: str
    created_at: datetime
    partition: int
    offset: int


class CurrentStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a run stands at."""

    step_key: str
    name: str
    type: str
    status: str
    attempts: int
    max_attempts: int | None
    timeout_ms: int | None
    next_retry_at: datetime | None
    wake_at: datetime | None
    wait_event_type: str | None
    error_name: str | None
    error_message: str | None


class Instance(InstanceListed, frozen=True, kw_only=True):
    """An instance in its current run, whole."""

    params: Json
    parent_workflow_name: str | None
    parent_instance_id: str | None
    parent_run_number: int | None
    parent_step_key: str | None
    current_step: CurrentStep | None


class Step(CurrentStep, frozen=True, kw_only=True):
    """An entry of a run's history."""

    run_number: int
    child_workflow_name: str | None
    child_instance_id: str | None
    result: Json | None
    error_detail: Json | None
    ordinal: int
    sequence: int
    created_at: datetime
    updated_at: datetime
    rolled_back_at: datetime | None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a run has received."""

    run_number: int
    id: str
    type: str
    payload: Json | None
    sequence: int
    created_at: datetime
    delivered_at: datetime | None
    consumed_by_step_key: str | None


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a run has written."""

    run_number: int
    id: str
    step_key: str | None
    attempt: int | None
    level: str
    category: str
    message: str
    data: Json | None
    is_replay: bool
    created_at: datetime


# --- places: what a cursor holds, named as the query's parameters -------------------------------


class _OfInstance(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    created_at: datetime
    instance_id: str


class _OfStep(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    ordinal: int
    sequence: int


class _OfEvent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    sequence: int


class _OfLine(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    id: str


#: Where pages begin, by order: what no row comes before.
_BEGIN: Final[dict[type[msgspec.Struct], dict[Order, dict[str, object]]]] = {
    _OfInstance: {
        "asc": {"created_at": "-infinity", "instance_id": ""},
        "desc": {"created_at": "infinity", "instance_id": ""},
    },
    _OfStep: {
        "asc": {"ordinal": -1, "sequence": -1},
        "desc": {"ordinal": _NUMBER_MAX, "sequence": _NUMBER_MAX},
    },
    _OfEvent: {"asc": {"sequence": -1}, "desc": {"sequence": _NUMBER_MAX}},
    _OfLine: {"asc": {"id": ""}, "desc": {"id": "~"}},
}


class Workflows:
    """Reads what was projected of workflows.

    Errors: StoreUnavailable from every method; InvalidCursor from those that take one, ValueError
            for a limit out of range.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def instances(
        self,
        workflow_name: str,
        *,
        status: str | None = None,
        order: Order = "desc",
        limit: int,
        after: str | None = None,
    ) -> Page[InstanceListed]:
        """Instances of a workflow, by the time of their creation, the newest first."""
        query = _query("workflow_instances", order, status=status)
        bound: dict[str, object] = {"workflow_name": workflow_name, "status": status}
        place = _place(_OfInstance, order, after)
        return await self._page(query, bound | place, InstanceListed, _OfInstance, limit)

    async def instance(self, workflow_name: str, instance_id: str) -> Instance | None:
        """An instance; None when there is none (yet)."""
        rows = await self._reader.answers(
            statement("workflow_instance"), workflow_name=workflow_name, instance_id=instance_id
        )
        return msgspec.convert(rows[0], Instance) if rows else None

    async def run(
        self, workflow_name: str, instance_id: str, run_number: int | None = None
    ) -> Run | None:
        """A run of an instance, the current one unless named; None when there is none (yet)."""
        if run_number is not None and not 0 <= run_number <= _NUMBER_MAX:
            return None
        rows = await self._reader.answers(
            statement("workflow_run"),
            workflow_name=workflow_name,
            instance_id=instance_id,
            run_number=run_number,
        )
        return msgspec.convert(rows[0], Run) if rows else None

    async def steps(
        self, run: RunKey, *, order: Order = "asc", limit: int, after: str | None = None
    ) -> Page[Step]:
        """Entries of a run, in the order in which they were first reached."""
        bound = msgspec.structs.asdict(run) | _place(_OfStep, order, after)
        return await self._page(_query("workflow_steps", order), bound, Step, _OfStep, limit)

    async def events(
        self, run: RunKey, *, order: Order = "asc", limit: int, after: str | None = None
    ) -> Page[Event]:
        """Events that a run has received, in the order in which they came."""
        bound = msgspec.structs.asdict(run) | _place(_OfEvent, order, after)
        return await self._page(_query("workflow_events", order), bound, Event, _OfEvent, limit)

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
        return await self._page(query, bound | place, LogLine, _OfLine, limit)

    async def next_offset(self, partition: int) -> int:
        """The first offset of a partition of `workflow-history` that is not applied yet."""
        rows = await self._reader.answers(
            statement("next_offset"),
            projection=WORKFLOWS.name,
            topic=WORKFLOW_HISTORY,
            partition=partition,
        )
        return rows[0]["next_offset"] if rows else 0

    async def _page(
        self, query: bytes, bound: Row, row: type[R], place: type[P], limit: int
    ) -> Page[R]:
        limit = bounded(limit)
        try:
            # One more than fits tells whether anything is left.
            found = await self._reader.answers(query, **bound, limit=limit + 1)
        except RecordRefused as error:
            raise InvalidCursor(
                "expected a cursor from an earlier page, found one out of range; start without one"
            ) from error
        shown = found[:limit]
        more = len(found) > limit
        last = [shown[-1][name] for name in place.__struct_fields__] if more else None
        rows = tuple(msgspec.convert(each, row) for each in shown)
        return Page(rows=rows, cursor=None if last is None else pack(last))


def _place(place: type[P], order: Order, after: str | None) -> dict[str, object]:
    """Where a page begins, as parameters of its query."""
    if after is None:
        return _BEGIN[place][order]
    return msgspec.structs.asdict(unpack(after, place))


def _query(name: str, order: Order, **filters: str | None) -> bytes:
    return _filled(name, order, tuple(key for key, value in filters.items() if value is not None))


@cache
def _filled(name: str, order: Order, filters: tuple[str, ...]) -> bytes:
    """A listing in one of its orders, with the filters that are asked for.

    Only so can Postgres tell that an index answers it.
    """
    conditions = [
        sql.SQL("and {} = {}").format(sql.Identifier(each), sql.Placeholder(each))
        for each in filters
    ]
    return filled(
        name,
        filter=sql.SQL(" ").join(conditions),
        order=sql.SQL("asc") if order == "asc" else sql.SQL("desc"),
        beyond=sql.SQL(">") if order == "asc" else sql.SQL("<"),
    )
