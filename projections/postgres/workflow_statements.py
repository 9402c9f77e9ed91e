"""The statements that write rows of workflows, generated from the declarations of their tables.

A statement takes whole rows, or changes of rows that may exist. A change has a bit for each column
that it sets in `changed`, because in rows of JSON a missing column is null. A column needs an
expression here only if it is not simply set.
"""

from collections.abc import Iterable, Mapping
from typing import Final, LiteralString

from psycopg import sql

from headwater.projections.postgres.statements import filled, listed, statement
from headwater.schemas.workflow_columns import WorkflowColumn, WorkflowTable
from headwater.schemas.workflow_tables import (
    AS_STORED,
    EVENT,
    GRAPH_EVENT,
    INSTANCE,
    LOG,
    RUN,
    SLOT,
    STEP,
    TOKEN,
)

Expressions = Mapping[str, LiteralString]

#: Types of received values; JSON is received as text, times as Unix milliseconds.
_RECEIVED: Final = {"json": "text", "timestamptz": "double precision"}

# Expressions of columns: `r` is the received row, `t` the stored one.

#: When a row exists: the sequence of a step is that of the event which showed it first. An event
#: that ends a later attempt does not have its start time; the event that began the attempt does.
_CONFLICTS: Final[Mapping[WorkflowTable, Expressions]] = {
    INSTANCE: {"created_at": "t.created_at"},
    STEP: {
        "sequence": "t.sequence",
        "last_attempt_at": "coalesce(excluded.last_attempt_at, t.last_attempt_at)",
    },
}
#: When a row changes: a status that is not forced applies only to an active or waiting run.
_CHANGES: Final[Mapping[WorkflowTable, Expressions]] = {
    INSTANCE: {
        "status": "case when r.forced or t.status in ('active', 'waiting') "
        "then coalesce(r.status, t.status) else t.status end"
    },
    STEP: {"trimmed_before": "greatest(r.trimmed_before, t.trimmed_before)"},
    TOKEN: {
        "retry_status": f"case when r.retry_status is distinct from '{AS_STORED}' "
        "then r.retry_status when t.status = 'waiting_for_siblings' then t.status "
        "else 'pending' end"
    },
}
_STARTED_AT: Final = "to_timestamp(r.started_at / 1000)"
#: When a run begins. A retry keeps the start of the run that it continues.
_STARTS: Final[Expressions] = {
    "labels": "coalesce(r.labels, '{}')",
    "created_at": _STARTED_AT,
    "started_at": "coalesce(case when r.retries then (select i.started_at "  # noqa: S608, constants
    "from workflow_instance i where i.workflow_name = r.workflow_name "
    f"and i.instance_id = r.instance_id) end, {_STARTED_AT})",
}
#: When a retry copies a row: unfinished entries are before all new ones, in their order.
_COPIED: Final[Expressions] = {
    "run_number": "r.run_number",
    "offset": 'r."offset"',
    "sequence": "row_number() over in_order - 1 - count(*) over run",
}
_RESTARTED_AT: Final = f"case when restarts then {_STARTED_AT} else t.updated_at end"
_STEP_COPIES: Final[Expressions] = {
    **_COPIED,
    "status": "case when not restarts then t.status when t.type = 'sleep' then 'waiting' "
    "else 'pending' end",
    "updated_at": _RESTARTED_AT,
}
_TOKEN_COPIES: Final[Expressions] = {
    **_COPIED,
    "status": "coalesce(t.retry_status, t.status)",
    "attempts": "case when restarts then 0 else t.attempts end",
    # An event of the retry sets it for those that wait for siblings.
    "wake_at": "case when not restarts then t.wake_at end",
    "updated_at": _RESTARTED_AT,
}

#: Of workflow events: what the row of the token determines.
_DERIVED: Final[Expressions] = {
    "name": "case when r.child_name is not null and t.task is null then r.child_name "
    "else r.name end",
    "node_ref": "coalesce(r.node_ref, t.node_ref)",
}


def selected(
    table: WorkflowTable, names: Iterable[str] | None = None, row: str = "t"
) -> sql.Composed:
    """Return columns for readers, all or the named ones; JSON as text, which keeps its bytes."""
    columns = [c for c in table.columns if names is None or c.name in names]
    return listed([_selected(column, row) for column in columns])


def _selected(column: WorkflowColumn, row: str) -> sql.Composable:
    value = sql.Identifier(row, column.name)
    if column.type != "json":
        return value
    return sql.SQL("{}::text as {}").format(value, sql.Identifier(column.name))


def _insert(table: WorkflowTable, *, replaces: bool = False) -> bytes:
    """Return the statement that inserts rows; it leaves existing rows as they are, or replaces."""
    return filled(
        "insert_workflow_rows",
        table=sql.Identifier(table.name),
        columns=_names(table),
        definitions=_definitions(table),
        values=listed([_received(column) for column in table.columns]),
        key=listed([sql.Identifier(name) for name in table.key]),
        action=sql.SQL("update set {}").format(_replacements(table))
        if replaces
        else sql.SQL("nothing"),
    )


def _insert_graph_events() -> bytes:
    values = [_expression(column, _DERIVED) or _received(column) for column in GRAPH_EVENT.columns]
    return filled(
        "insert_graph_events",
        columns=_names(GRAPH_EVENT),
        definitions=_definitions(GRAPH_EVENT),
        values=listed(values),
    )


def _change(table: WorkflowTable) -> bytes:
    """Return the statement that changes rows, if they exist."""
    special = _CHANGES.get(table, {})
    assignments = [
        sql.SQL("{} = case when r.changed & {} = 0 then {} else {} end").format(
            sql.Identifier(column.name),
            sql.Literal(table.bits[column.name]),
            sql.Identifier("t", column.name),
            _expression(column, special) or _received(column),
        )
        for column in table.columns
        if column.name not in table.key
    ]
    # Changes of an earlier run do not affect the row of an instance.
    match = [sql.Identifier(name) for name in dict.fromkeys((*table.key, "run_number"))]
    return filled(
        "change_workflow_rows",
        table=sql.Identifier(table.name),
        definitions=_definitions(table),
        assignments=listed(assignments),
        match=sql.SQL(" and ").join([sql.SQL("t.{0} = r.{0}").format(name) for name in match]),
    )


def _start_instances() -> bytes:
    values = [_expression(column, _STARTS) or _received(column) for column in INSTANCE.columns]
    return filled(
        "start_workflow_instances",
        definitions=_definitions(INSTANCE),
        run_columns=_names(RUN),
        run_values=listed([sql.Identifier("i", column.name) for column in RUN.columns]),
        columns=_names(INSTANCE),
        values=listed(values),
        assignments=_replacements(INSTANCE),
    )


def _retry_runs() -> bytes:
    return filled(
        "retry_workflow_runs",
        step_columns=_names(STEP),
        step_copies=_copies(STEP, _STEP_COPIES),
        token_columns=_names(TOKEN),
        token_copies=_copies(TOKEN, _TOKEN_COPIES),
        event_columns=_names(EVENT),
        event_copies=_copies(EVENT, _COPIED),
    )


def _copies(table: WorkflowTable, special: Expressions) -> sql.Composed:
    return listed([_expression(column, special) or _copy(column) for column in table.columns])


def _copy(column: WorkflowColumn) -> sql.Composable:
    value = sql.Identifier("t", column.name)
    return (
        sql.SQL("case when not restarts then {} end").format(value) if column.is_cleared else value
    )


def _definitions(table: WorkflowTable) -> sql.Composed:
    """Return the columns, hints and the mask of received rows."""
    types = {column.name: _RECEIVED.get(column.type, column.type) for column in table.columns}
    types |= {**table.hints, "changed": "bigint"}
    return listed(
        [sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(t)) for n, t in types.items()]
    )


def _names(table: WorkflowTable) -> sql.Composed:
    return listed([sql.Identifier(column.name) for column in table.columns])


def _received(column: WorkflowColumn) -> sql.Composable:
    value = sql.Identifier("r", column.name)
    match column.type:
        case "json":
            return sql.SQL("{}::json").format(value)
        case "timestamptz":
            return sql.SQL("to_timestamp({} / 1000)").format(value)
        case _:
            return value


def _replacements(table: WorkflowTable) -> sql.Composed:
    special = _CONFLICTS.get(table, {})
    return listed(
        [
            sql.SQL("{} = {}").format(
                sql.Identifier(column.name),
                _expression(column, special) or sql.Identifier("excluded", column.name),
            )
            for column in table.columns
            if column.name not in table.key
        ]
    )


def _expression(column: WorkflowColumn, special: Expressions) -> sql.Composable | None:
    return sql.SQL(special[column.name]) if column.name in special else None


#: Statements that write rows of workflows, by table and by kind of change.
STATEMENTS: Final[Mapping[str, bytes]] = {
    "workflow_owner": statement("upsert_workflow_owners"),
    "workflow_retries": _retry_runs(),
    "workflow_step_trims": statement("trim_workflow_steps"),
    "workflow_slot_grants": statement("grant_workflow_slots"),
    INSTANCE.name: _start_instances(),
    STEP.name: _insert(STEP, replaces=True),
    TOKEN.name: _insert(TOKEN),
    EVENT.name: _insert(EVENT, replaces=True),
    LOG.name: _insert(LOG),
    GRAPH_EVENT.name: _insert_graph_events(),
    SLOT.name: _insert(SLOT),
    **{f"{table.name}_changes": _change(table) for table in (INSTANCE, STEP, TOKEN, EVENT)},
}
