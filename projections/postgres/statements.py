"""The SQL of this package: files in `queries/`, with templates filled for projection tables.

A statement for projection tables is one template for all of them. Names and types come from the
declarations in `schemas.tables`, so a new table needs a migration but no SQL here. All rows of a
statement are one parameter: binary for large numbers of rows (ADR 0025), otherwise JSON.
"""

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from psycopg import sql

from headwater.schemas.installed_tables import ALL_TABLES
from headwater.schemas.tables import Column, Table, begins_with_user

_QUERIES: Final = files("headwater.projections").joinpath("queries")


@dataclass(frozen=True, slots=True)
class SqlColumn:
    """A column of a projection table in Postgres."""

    name: str
    type: str

    @property
    def identifier(self) -> sql.Identifier:
        """The quoted name."""
        return sql.Identifier(self.name)

    @property
    def definition(self) -> sql.Composable:
        """The column in the row definition of json_to_recordset."""
        return sql.SQL("{} {}").format(self.identifier, _raw(self.type))

    @property
    def received(self) -> sql.Composable:
        """The column's value in the row `r` of a statement."""
        return sql.SQL("r.{}::{}").format(self.identifier, _raw(self.type))

    @property
    def named(self) -> sql.Composable:
        """Condition that the column of the row `t` equals the parameter of its name."""
        name = sql.Placeholder(self.name)
        return sql.SQL("t.{} = {}::{}").format(self.identifier, name, _raw(self.type))

    @property
    def selected(self) -> sql.Composable:
        """The column as readers receive it."""
        if self.type == "json":  # decoding and encoding it would change its bytes
            return sql.SQL("{0}::text as {0}").format(self.identifier)
        return self.identifier


def key_columns(table: Table) -> tuple[SqlColumn, ...]:
    """Return the primary key of a projection table."""
    return _sql_columns(table.key)


def value_columns(table: Table) -> tuple[SqlColumn, ...]:
    """Return the other columns of a projection table that the projector writes."""
    times = (SqlColumn(column.name, "timestamptz") for column in table.times)
    return (*_sql_columns(table.columns), *times)


def read_columns(table: Table) -> sql.Composed:
    """Return the columns for readers: all except internal ones, with JSON as text."""
    generated = (SqlColumn(column.name, column.sql) for column in table.generated)
    columns = (*generated, *key_columns(table), *value_columns(table))
    return listed([column.selected for column in columns])


def statement(name: str) -> bytes:
    """Return a statement of `queries/`, where `-- name:` lines name them."""
    return _statements()[name]


@cache
def _statements() -> dict[str, bytes]:
    named: dict[str, bytes] = {}
    for file in _QUERIES.iterdir():
        _, *parts = re.split(rb"^-- name: (\w+)\n", file.read_bytes(), flags=re.MULTILINE)
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            named[name.decode()] = text.strip() + b"\n"
    return named


def filled(name: str, **parts: sql.Composable) -> bytes:
    """Return a statement with its `{names}` replaced."""
    return template(name).format(**parts).as_bytes(None)


def template(name: str) -> sql.SQL:
    """Return a statement as a template, or as a part of another one."""
    return _template(statement(name).decode())


def listed(parts: list[sql.Composable]) -> sql.Composed:
    """Join parts of a statement with commas."""
    return sql.SQL(", ").join(parts)


def _sql_columns(columns: tuple[Column, ...]) -> tuple[SqlColumn, ...]:
    return tuple(SqlColumn(column.name, column.sql) for column in columns)


def _template(text: str) -> sql.SQL:
    # psycopg requires literal text; a file of the package is equally trusted.
    return sql.SQL(text)


_raw = _template


def names_user(table: Table) -> bool:
    """Whether the rows of a table name their user."""
    return begins_with_user(table) or "user_id" in table.column_names


def wiped_rows(table: Table) -> str:
    """Return the key in DELETES for rows of a table that a wipe has removed."""
    return f"{table.name} of the wiped"


def upsert_of(table: Table) -> bytes:
    """Return the statement that writes rows of a projection table."""
    key, values = key_columns(table), value_columns(table)
    both = (*key, *values)
    return filled(
        "upsert_rows",
        table=sql.Identifier(table.name),
        columns=listed([column.identifier for column in both]),
        values=listed([column.received for column in both]),
        row_type=sql.Identifier(f"{table.name}_row"),
        key=listed([column.identifier for column in key]),
        assignments=listed(
            [sql.SQL("{0} = excluded.{0}").format(column.identifier) for column in values]
        ),
    )


def _delete(table: str, key: tuple[SqlColumn, ...]) -> bytes:
    return filled(
        "delete_rows",
        table=sql.Identifier(table),
        definitions=listed([column.definition for column in key]),
        match=_match(key),
    )


def _delete_synced(table: Table) -> bytes:
    key = key_columns(table)
    pairs = [
        sql.SQL("{}, r.{}").format(sql.Literal(column.name), column.identifier) for column in key
    ]
    of_user = table.key_names[0] == "user_id"
    others = [column for column in key if column.name != "user_id"]
    return filled(
        "delete_synced_rows",
        table=sql.Identifier(table.name),
        table_name=sql.Literal(table.name),
        definitions=listed([column.definition for column in key]),
        match=_match(key),
        returned=listed([sql.SQL("t.{}").format(column.identifier) for column in others]),
        pairs=listed(list(pairs)),
        user_id=sql.SQL("r.user_id" if of_user else "t.user_id"),
    )


def _delete_wiped(table: Table) -> bytes:
    key = key_columns(table)
    return filled(
        "delete_wiped_rows",
        table=sql.Identifier(table.name),
        table_name=sql.Literal(table.name),
        definitions=listed([column.definition for column in key]),
        match=_match(key),
    )


def _match(key: tuple[SqlColumn, ...]) -> sql.Composed:
    return sql.SQL(" and ").join(
        [sql.SQL("t.{0} = r.{0}").format(column.identifier) for column in key]
    )


#: Statements that write rows, by table; for workflows also those that change existing rows.
UPSERTS: Final[dict[str, bytes]] = {
    **{table.name: upsert_of(table) for table in ALL_TABLES},
    "webhook_outcomes": statement("upsert_webhook_outcomes"),
    "duplicates": statement("insert_duplicates"),
    "request_answers": statement("insert_request_answers"),
    "effects": statement("insert_effects"),
    "dead_letters": statement("upsert_dead_letters"),
    "dead_letter_replays": statement("upsert_dead_letter_replays"),
    "dead_letter_expiries": statement("expire_dead_letters"),
    "projection_errors": statement("insert_projection_errors"),
    "wipes": statement("upsert_wipes"),
    "workflow_owner": statement("upsert_workflow_owners"),
    "workflow_instance": statement("start_workflow_instances"),
    "workflow_instance_changes": statement("change_workflow_instances"),
    "workflow_retries": statement("retry_workflow_runs"),
    "workflow_step": statement("upsert_workflow_steps"),
    "workflow_step_changes": statement("change_workflow_steps"),
    "workflow_step_trims": statement("trim_workflow_steps"),
    "workflow_token": statement("insert_workflow_tokens"),
    "workflow_token_changes": statement("change_workflow_tokens"),
    "workflow_event": statement("upsert_workflow_events"),
    "workflow_deliveries": statement("deliver_workflow_events"),
    "workflow_log": statement("insert_workflow_logs"),
    "workflow_slot": statement("insert_workflow_slots"),
    "workflow_slot_grants": statement("grant_workflow_slots"),
    "graph_definition": statement("deploy_graph"),
    "audit_logs": statement("insert_audit_logs"),
    "create_deployment": statement("create_deployment"),
    "activate_deployment": statement("activate_deployment"),
}

#: Tables with rows of workflow instances.
OF_INSTANCES: Final = (
    "workflow_instance",
    "workflow_run",
    "workflow_step",
    "workflow_token",
    "workflow_event",
    "workflow_log",
)
#: All tables of the projection of workflows.
OF_WORKFLOWS: Final = (*OF_INSTANCES, "workflow_slot", "workflow_owner")
_INSTANCE: Final = (SqlColumn("workflow_name", "text"), SqlColumn("instance_id", "text"))
#: Statements that delete rows, by table.
DELETES: Final[dict[str, bytes]] = {
    **{table.name: _delete_synced(table) for table in ALL_TABLES},
    **{wiped_rows(table): _delete_wiped(table) for table in ALL_TABLES if names_user(table)},
    "dead_letters": statement("delete_dead_letters"),
    "effects": _delete("effects", (SqlColumn("event_id", "text"), SqlColumn("name", "text"))),
    "webhook_outcomes": _delete("webhook_outcomes", (SqlColumn("event_id", "text"),)),
    "duplicates": _delete("duplicates", (SqlColumn("request_id", "text"),)),
    **{table: _delete(table, _INSTANCE) for table in OF_INSTANCES},
    "rebuild_rows": statement("delete_rebuilt_instances"),
    "workflow_slot": statement("return_workflow_slots"),
}
