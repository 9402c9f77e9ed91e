"""The statements of the projector, by table: those that write rows, and those that delete them."""

from typing import Final

from psycopg import sql

from headwater.projections.postgres.statements import (
    SqlColumn,
    filled,
    key_columns,
    listed,
    names_user,
    statement,
    value_columns,
    wiped_rows,
)
from headwater.projections.postgres.workflow_statements import STATEMENTS
from headwater.schemas.installed_tables import ALL_TABLES
from headwater.schemas.tables import Table
from headwater.schemas.workflow_tables import (
    EVENT,
    GRAPH_EVENT,
    INSTANCE,
    LOG,
    RUN,
    SLOT,
    STEP,
    TOKEN,
)

_BINARY_ROWS: Final = sql.SQL("unnest(%(rows)s::pg_temp.{}[])")
#: The alias of the function is needed for the names of its columns.
_JSON_ROWS: Final = sql.SQL("(select * from json_to_recordset(%(rows)s::json) as named ({}))")


def upsert_of(table: Table, rows: sql.Composable | None = None) -> bytes:
    """Return the statement that writes rows of a projection table.

    Args:
        table: The table.
        rows: Query of the rows; None for a parameter with binary rows.
    """
    key, values = key_columns(table), value_columns(table)
    both = (*key, *values)
    return filled(
        "upsert_rows",
        table=sql.Identifier(table.name),
        columns=listed([column.identifier for column in both]),
        values=listed([column.received for column in both]),
        rows=rows or _BINARY_ROWS.format(sql.Identifier(f"{table.name}_row")),
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


def delete_synced(table: Table, rows: sql.Composable | None = None) -> bytes:
    """Return the statement that deletes rows of a projection table, and tells readers of sync.

    Args:
        table: The table.
        rows: Query of the rows; None for a parameter with their keys as JSON.
    """
    key = key_columns(table)
    definitions = listed([column.definition for column in key])
    pairs = [
        sql.SQL("{}, r.{}").format(sql.Literal(column.name), column.identifier) for column in key
    ]
    of_user = table.key_names[0] == "user_id"
    others = [column for column in key if column.name != "user_id"]
    return filled(
        "delete_synced_rows",
        table=sql.Identifier(table.name),
        table_name=sql.Literal(table.name),
        rows=rows or _JSON_ROWS.format(definitions),
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


#: Statements that write rows, by table and, for workflows, kind of change.
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
    **STATEMENTS,
    "graph_definition": statement("deploy_graph"),
    "audit_logs": statement("insert_audit_logs"),
    "create_api_key": statement("create_api_key"),
    "rotate_api_key": statement("rotate_api_key"),
    "revoke_api_key": statement("revoke_api_key"),
    "use_api_key": statement("use_api_key"),
    "create_deployment": statement("create_deployment"),
    "activate_deployment": statement("activate_deployment"),
    "retire_deployment": statement("retire_deployment"),
}

#: Tables with rows of workflow instances.
OF_INSTANCES: Final = tuple(
    table.name for table in (INSTANCE, RUN, STEP, TOKEN, EVENT, LOG, GRAPH_EVENT)
)
#: All tables of the projection of workflows.
OF_WORKFLOWS: Final = (*OF_INSTANCES, SLOT.name, "workflow_owner")
_INSTANCE: Final = (SqlColumn("workflow_name", "text"), SqlColumn("instance_id", "text"))
#: Statements that delete rows, by table.
DELETES: Final[dict[str, bytes]] = {
    **{table.name: delete_synced(table) for table in ALL_TABLES},
    **{wiped_rows(table): _delete_wiped(table) for table in ALL_TABLES if names_user(table)},
    "dead_letters": statement("delete_dead_letters"),
    "effects": _delete("effects", (SqlColumn("event_id", "text"), SqlColumn("name", "text"))),
    "webhook_outcomes": _delete("webhook_outcomes", (SqlColumn("event_id", "text"),)),
    "duplicates": _delete("duplicates", (SqlColumn("request_id", "text"),)),
    **{table: _delete(table, _INSTANCE) for table in OF_INSTANCES},
    "rebuild_rows": statement("delete_rebuilt_instances"),
    SLOT.name: _delete(
        SLOT.name, tuple(SqlColumn(c.name, c.type) for c in SLOT.columns if c.name in SLOT.key)
    ),
}
