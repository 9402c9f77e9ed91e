"""Pages of workflow rows: queries, start positions and cursors."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Final, Generic, Literal, LiteralString, TypeAlias, TypeVar

import msgspec
from psycopg import sql

from headwater.projections.postgres.connections import PooledReader, Row, bounded
from headwater.projections.postgres.cursors import pack, unpack, valid_cursor
from headwater.projections.postgres.statements import filled, template
from headwater.projections.postgres.workflow_statements import selected
from headwater.projections.workflows.answers import Page
from headwater.schemas.answers import GRAPH_EVENTS, CurrentStep, InstanceFound, InstanceStatus
from headwater.schemas.workflow_columns import WorkflowTable
from headwater.schemas.workflow_tables import EVENT, GRAPH_EVENT, INSTANCE, LOG, STEP, TOKEN

Order: TypeAlias = Literal["asc", "desc"]
R = TypeVar("R", bound=msgspec.Struct)

#: Range of Postgres's bigint.
_NUMBER_MIN: Final = -(2**63)
_NUMBER_MAX: Final = 2**63 - 1
#: Conditions of filters other than equality of a column.
_CONDITIONS: Final[Mapping[str, LiteralString]] = {
    "labels": "and {} @> {}::jsonb",
    "updated_since": "and updated_at >= {1}::timestamptz",
    "updated_before": "and updated_at < {1}::timestamptz",
}


# --- cursors: the fields are the parameters of the query ---------------------------------------


class InstanceCursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Position of an instance, ordered by time of creation."""

    created_at: datetime
    workflow_name: str
    instance_id: str


class StepCursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Position of an entry of a run."""

    ordinal: int
    sequence: int


class TokenCursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Position of a token of a run."""

    id: int


class JobCursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Position of a job that has not ended."""

    created_at: datetime
    workflow_name: str
    instance_id: str
    run_number: int
    id: int


class EventCursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Position of an event of a run."""

    sequence: int


class LogCursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Position of a log line."""

    id: str


#: Workflows of authors, without built-in ones.
OF_AUTHORS: Final = sql.SQL(
    "not starts_with(name, 'headwater-') "
    "and name not in ('terra-backfill', 'terra-disconnect', 'terra-import', 'terra-lab', "
    "'terra-reconcile', 'terra-reconcile-user')"
)
#: The workflows that owners and the active deployment declare.
DECLARED: Final = template("declared_workflows")
#: Columns of errors, which become a `Failure` in an answer; listings have no details.
_ERROR: Final = frozenset({"error_name", "error_message"})
CURRENT_STEP: Final = template("workflow_current_step").format(
    declared=DECLARED,
    step=selected(STEP, {*CurrentStep.__struct_fields__, *_ERROR, "error_detail"}),
)
#: Names of authors' workflows that have instances.
NAMES_WITH_INSTANCES: Final = template("workflow_names_of_instances").format(of_authors=OF_AUTHORS)
#: Workflows of a listing.
_WORKFLOWS: Final[Mapping[str, sql.Composable]] = {
    "workflow_instances": sql.SQL("select {}::text").format(sql.Placeholder("workflow")),
    "instances_of_all": NAMES_WITH_INSTANCES,
}
#: Columns of a listing, if it takes them from one table.
_COLUMNS: Final[Mapping[str, sql.Composable]] = {
    "workflow_instances": selected(
        INSTANCE,
        {
            "instance_id",
            *InstanceFound.__struct_fields__,
            *InstanceStatus.__struct_fields__,
            *_ERROR,
        },
        row="i",
    ),
    "workflow_steps": selected(STEP),
    "workflow_tokens": selected(TOKEN),
    "workflow_events": selected(EVENT),
    "workflow_logs": selected(LOG),
}

#: Start position of the first page, by order.
_BEGIN: Final[dict[type[msgspec.Struct], dict[Order, dict[str, object]]]] = {
    InstanceCursor: {
        "asc": {"created_at": "-infinity", "workflow_name": "", "instance_id": ""},
        "desc": {"created_at": "infinity", "workflow_name": "", "instance_id": ""},
    },
    StepCursor: {
        "asc": {"ordinal": -1, "sequence": _NUMBER_MIN},
        "desc": {"ordinal": _NUMBER_MAX, "sequence": _NUMBER_MAX},
    },
    TokenCursor: {"asc": {"id": -1}, "desc": {"id": _NUMBER_MAX}},
    JobCursor: {
        "asc": {
            "created_at": "-infinity",
            "workflow_name": "",
            "instance_id": "",
            "run_number": -1,
            "id": -1,
        }
    },
    EventCursor: {"asc": {"sequence": _NUMBER_MIN}, "desc": {"sequence": _NUMBER_MAX}},
    LogCursor: {"asc": {"id": ""}, "desc": {"id": "~"}},
}


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """Rows that are read page by page: the query, the cursor type, and the result of a row."""

    name: str
    cursor: type[msgspec.Struct]
    result: Callable[[Row], R]

    def query(self, order: Order, filters: Iterable[str] = ()) -> bytes:
        """Return the query for an order and the names of filters."""
        return _filled(self.name, order, tuple(filters))

    def begin(self, order: Order, after: str | None) -> dict[str, object]:
        """Return the start of a page, as parameters of its query.

        Raises:
            InvalidCursor: The cursor cannot be read.
        """
        if after is None:
            return dict(_BEGIN[self.cursor][order])
        return msgspec.structs.asdict(unpack(after, self.cursor))

    def page(self, shown: Sequence[Row], *, more: bool) -> Page[R]:
        """Return rows as a page, with a cursor if there are more."""
        rows = tuple(map(self.result, shown))
        if not more:
            return Page(rows=rows, cursor=None)
        return Page(
            rows=rows, cursor=pack([shown[-1][name] for name in self.cursor.__struct_fields__])
        )


async def page_of(  # noqa: PLR0913 (parameters of a page)
    reader: PooledReader,
    listing: Listing[R],
    bound: Mapping[str, object],
    *,
    filters: Mapping[str, object] | None = None,
    order: Order,
    limit: int,
    after: str | None,
) -> Page[R]:
    """Return a page of a listing. Filters that are None have no effect.

    Raises:
        InvalidCursor: The cursor cannot be read.
        StoreUnavailable: Postgres does not answer.
        ValueError: The limit is out of range.
    """
    active_filters = {name: value for name, value in (filters or {}).items() if value is not None}
    query, limit = listing.query(order, active_filters), bounded(limit)
    bound = {**bound, **active_filters, **listing.begin(order, after)}
    rows = await rows_of(reader, query, bound, limit)
    return listing.page(rows[:limit], more=len(rows) > limit)


async def rows_of(
    reader: PooledReader, query: bytes, bound: Mapping[str, object], limit: int
) -> Sequence[Row]:
    """Return the rows of a page, plus one more row if there are more."""
    with valid_cursor():
        return await reader.answers(query, **bound, limit=limit + 1)


@cache
def _filled(name: str, order: Order, filters: tuple[str, ...]) -> bytes:
    """Return the query of a listing with an order and filters.

    Filters are part of the text: only then can Postgres choose the matching index.
    """
    conditions = [
        sql.SQL(_CONDITIONS.get(column, "and {} = {}")).format(
            sql.Identifier(column), sql.Placeholder(column)
        )
        for column in filters
    ]
    parts: dict[str, sql.Composable] = {}
    if name in _WORKFLOWS:
        parts = {"workflows": _WORKFLOWS[name], "current_step": CURRENT_STEP}
        name = "workflow_instances"
    return filled(
        name,
        **parts,
        columns=_COLUMNS.get(name, sql.SQL("")),
        filter=sql.SQL(" ").join(conditions),
        order=sql.SQL("asc") if order == "asc" else sql.SQL("desc"),
        beyond=sql.SQL(">") if order == "asc" else sql.SQL("<"),
    )


# --- changes of a run, in the order of the log ----------------------------------------------------

#: Where rows are in the log. The id of a log line begins with its partition and offset.
_BY_OFFSET: Final[dict[str, LiteralString]] = {
    "offset": '"offset"',
    "position": '"offset"',
    "after": '"offset" > %(after)s::bigint and "offset" >= 0',
    "through": '"offset" <= (select through from page)',
}
_BY_ID: Final[dict[str, LiteralString]] = {
    "offset": "substr(id, 7, 15)::bigint",
    "position": "id",
    "after": "id >= (select i.lines || lpad((%(after)s::bigint + 1)::text, 15, '0') "
    'from instance i) collate "C"',
    "through": "id < (select p.lines || lpad((p.through + 1)::text, 15, '0') from page p) "
    'collate "C"',
}
#: Workflow events of graphs: only those that are requested.
_BY_NAME: Final[dict[str, LiteralString]] = {
    **_BY_OFFSET,
    "after": f"{_BY_OFFSET['after']} and name = any(%(names)s::text[])",
}
_PLACES: Final = {LOG: _BY_ID, GRAPH_EVENT: _BY_NAME}
#: Tables by the rank of their rows within a record, and the columns that order rows of a rank.
_RANKED: Final[tuple[tuple[WorkflowTable, LiteralString, LiteralString], ...]] = (
    (STEP, "ordinal", "sequence"),
    (TOKEN, "id", "0"),
    (EVENT, "sequence", "0"),
    (LOG, "substr(id, 23)", "0"),
    (GRAPH_EVENT, "sequence", "position"),
    (INSTANCE, "0", "0"),
)


#: Message that a changed row of a table becomes.
MESSAGES: Final = {STEP: "step", TOKEN: "token", EVENT: "event", LOG: "log", INSTANCE: "status"}


def changes_of(names: frozenset[str]) -> bytes:
    """Return the query of changes that become messages with these names, and of the status.

    The names of workflow events are also a parameter of the query, `names`.
    """
    tables = {table for table, name in MESSAGES.items() if name in names}
    if names & set(GRAPH_EVENTS):
        tables.add(GRAPH_EVENT)
    # Without others, changes of the instance alone would not fill a page.
    return _changes(frozenset(tables - {INSTANCE} or {EVENT}))


@cache
def _changes(tables: frozenset[WorkflowTable]) -> bytes:
    """Return the query of changes: offsets of changed rows that end a page, then the rows."""
    offsets, rows = [], []
    for rank, (table, first, second) in enumerate(_RANKED, 1):
        if table is not INSTANCE and table not in tables:
            continue
        texts = _PLACES.get(table, _BY_OFFSET) | {"first": first, "second": second}
        parts: dict[str, sql.Composable] = {name: sql.SQL(text) for name, text in texts.items()}
        parts |= {"rank": sql.Literal(rank), "table": sql.Identifier(table.name)}
        names = table.bits.keys() - ({"params"} if table is INSTANCE else set())
        parts["columns"] = selected(table, names)
        rows.append(template("workflow_changes_rows").format(**parts))
        if table is not INSTANCE:
            offsets.append(template("workflow_changes_offsets").format(**parts))
    union = sql.SQL(" union all ")
    return filled("workflow_changes", offsets=union.join(offsets), rows=union.join(rows))
