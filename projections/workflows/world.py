"""Queries of a run's steps, hooks, waits and events, as the World names them.

The run is identified by its id alone. Every page is one query.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final, Literal, LiteralString, NamedTuple, TypeAlias

import msgspec
from psycopg import sql

from headwater.processors.rows.answers import failure_of, raw
from headwater.projections.postgres.connections import PooledReader, Row, bounded
from headwater.projections.postgres.cursors import pack, unpack, valid_cursor
from headwater.projections.postgres.statements import filled, template
from headwater.projections.workflows.answers import Page
from headwater.projections.workflows.listings import NAMES_WITH_INSTANCES, StepCursor
from headwater.schemas.statuses import EntryKind, EntryStatus
from headwater.schemas.v1_answers import WorldEvent, WorldHook, WorldStep, WorldWait

StepState: TypeAlias = Literal["pending", "running", "completed", "failed", "cancelled"]
#: Types of entries by the entity that they are.
STEPS: Final = (EntryKind.DO, EntryKind.CHILD)
HOOKS: Final = (EntryKind.WAIT,)
WAITS: Final = (EntryKind.SLEEP,)
_KINDS: Final[LiteralString] = (
    "values ('do', 'step'), ('child', 'step'), ('sleep', 'wait'), ('wait_for_event', 'hook')"
)
_STATUSES: Final[Mapping[EntryStatus, StepState]] = {
    EntryStatus.WAITING: "running",
    EntryStatus.COMPLETED: "completed",
    EntryStatus.ERRORED: "failed",
    EntryStatus.CANCELLED: "cancelled",
}
_NUMBER_MIN: Final = -(2**63)


class EventPosition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Position of an event of a run."""

    at: datetime
    rank: int
    correlation_id: str
    type: str


class RunPart(NamedTuple):
    """The run whose parts are read, and which of them.

    Attributes:
        run_id: Id of the run.
        workflow: Its workflow; None if only one has the id.
        key: Key of the only entry to be read; None for all.
        payload: Whether results and payloads are read.
    """

    run_id: str
    workflow: str | None = None
    key: str | None = None
    payload: bool = True


class Parts(NamedTuple):
    """A page of parts of a run.

    Attributes:
        workflows: Workflows that have a run with the id; parts are those of the first.
        page: The page.
    """

    workflows: Sequence[str]
    page: Page[Any]


class WorldEntries:
    """Reads parts of runs. All methods raise StoreUnavailable, and InvalidCursor for a cursor."""

    def __init__(self, reader: PooledReader) -> None:
        self._reader = reader

    async def steps(self, part: RunPart, limit: int, after: str | None) -> Parts:
        """Return steps of a run in the order in which they were reached."""
        return await self._entries(part, STEPS, limit, after)

    async def hooks(self, part: RunPart, limit: int, after: str | None) -> Parts:
        """Return waits of a run for events."""
        return await self._entries(part, HOOKS, limit, after)

    async def waits(self, part: RunPart, limit: int, after: str | None) -> Parts:
        """Return sleeps of a run."""
        return await self._entries(part, WAITS, limit, after)

    async def events(self, part: RunPart, limit: int, after: str | None) -> Parts:
        """Return what happened in a run, the earliest first."""
        begin: dict[str, object] = {"at": "-infinity", "rank": -1, "correlation_id": "", "type": ""}
        if after is not None:
            begin = msgspec.structs.asdict(unpack(after, EventPosition))
        query = _query("world_events", part.workflow is not None, False, part.payload)
        rows = await self._rows(query, part, limit, begin)
        return _parts(rows, "at", limit, _event, EventPosition, part.run_id)

    async def _entries(
        self, part: RunPart, types: Sequence[EntryKind], limit: int, after: str | None
    ) -> Parts:
        begin: dict[str, object] = {"ordinal": -1, "sequence": _NUMBER_MIN}
        if after is not None:
            begin = msgspec.structs.asdict(unpack(after, StepCursor))
        by_key = part.key is not None
        query = _query("world_entries", part.workflow is not None, by_key, part.payload)
        begin |= {"types": [str(kind) for kind in types]}
        rows = await self._rows(query, part, limit, begin)
        return _parts(rows, "step_key", limit, _entry, StepCursor, part.run_id)

    async def _rows(
        self, query: bytes, part: RunPart, limit: int, bound: dict[str, object]
    ) -> Sequence[Row]:
        parameters = {"run_id": part.run_id, "workflow": part.workflow, "key": part.key, **bound}
        with valid_cursor():
            return await self._reader.answers(query, **parameters, limit=bounded(limit) + 1)


@cache
def _query(name: str, of_workflow: bool, by_key: bool, payload: bool) -> bytes:
    named = sql.SQL("select {}::text").format(sql.Placeholder("workflow"))
    run = template("world_run").format(workflows=named if of_workflow else NAMES_WITH_INSTANCES)
    column = {"world_entries": sql.SQL("result::text"), "world_events": sql.SQL("payload")}[name]
    parts: dict[str, sql.Composable] = {
        "run": run, "payload": column if payload else sql.SQL("null::text"),
    }  # fmt: skip
    if name == "world_entries":
        key = sql.SQL("and step_key = {}").format(sql.Placeholder("key"))
        parts["filter"] = key if by_key else sql.SQL("")
    else:
        parts["kinds"] = sql.SQL(_KINDS)
    return filled(name, **parts)


def _parts(
    rows: Sequence[Row],
    present: str,
    limit: int,
    made: Any,  # noqa: ANN401 (a function of a row)
    cursor: type[msgspec.Struct],
    run_id: str,
) -> Parts:
    workflows = list(dict.fromkeys(row["workflow_name"] for row in rows))
    own = [row for row in rows if row["workflow_name"] == workflows[0] and row[present] is not None]
    shown = own[:limit]
    more = len(own) > limit
    last = pack([shown[-1][name] for name in cursor.__struct_fields__]) if more else None
    return Parts(workflows, Page(rows=tuple(made(row, run_id) for row in shown), cursor=last))


def _entry(row: Row, run_id: str) -> WorldStep | WorldHook | WorldWait:
    times = {name: row[name] for name in ("created_at", "updated_at", "completed_at")}
    status = EntryStatus(row["status"])
    match EntryKind(row["type"]):
        case EntryKind.SLEEP:
            return WorldWait(
                wait_id=row["step_key"],
                run_id=run_id,
                status="waiting" if status is EntryStatus.WAITING else "completed",
                resume_at=row["wake_at"],
                **times,
            )
        case EntryKind.WAIT:
            return WorldHook(
                hook_id=row["step_key"],
                run_id=run_id,
                token=row["wait_event_type"] or "",
                status="waiting" if status is EntryStatus.WAITING else "disposed",
                payload=raw(row["result"]),
                **times,
            )
        case _:
            begun = row["last_attempt_at"] is not None
            return WorldStep(
                step_id=row["step_key"],
                run_id=run_id,
                step_name=row["name"],
                status=_STATUSES.get(status, "running" if begun else "pending"),
                attempt=row["attempts"],
                output=raw(row["result"]),
                error=failure_of(row),
                started_at=row["last_attempt_at"],
                retry_after=row["next_retry_at"],
                **times,
            )


def _event(row: Row, run_id: str) -> WorldEvent:
    data = msgspec.json.decode(row["facts"]) if row["facts"] else {}
    if row["name"] and row["payload"] is not None:
        data[row["name"]] = msgspec.Raw(row["payload"].encode())
    correlation_id = row["correlation_id"] or None
    return WorldEvent(
        event_id=f"{row['type']}:{correlation_id}" if correlation_id else row["type"],
        run_id=run_id,
        event_type=row["type"],
        correlation_id=correlation_id,
        event_data=data,
        created_at=row["at"],
    )
