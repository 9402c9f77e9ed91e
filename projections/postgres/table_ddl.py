"""DDL of projection tables from their declarations; creates tables of installed packages.

Headwater's own tables are created by migrations. Released migrations are never changed, so the text
that `python -m headwater.projections.postgres.table_ddl NAME` prints is copied into a migration by
hand, and a test compares the two.
"""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import psycopg
from psycopg import errors, sql

from headwater.projections.errors import SchemaTaken, TableUnfit, store_edge
from headwater.projections.postgres.connections import own_dsn, schemas_of
from headwater.projections.postgres.statements import key_columns, statement, value_columns
from headwater.schemas.avro_schemas import doc_of, row_schema_of
from headwater.schemas.installed_tables import ALL_TABLES, INSTALLED
from headwater.schemas.row_states import Stamps
from headwater.schemas.tables import Table
from headwater.schemas.workflow_columns import WorkflowTable
from headwater.schemas.workflow_tables import WORKFLOW_TABLES

_CONNECT_TIMEOUT_S: Final = 5
#: Postgres's names of types that declarations name differently.
_POSTGRES_NAMES: Final = {"timestamptz": "timestamp with time zone"}


def make_tables(
    dsn: str, report: Callable[[str], None], tables: Sequence[Table] = INSTALLED
) -> None:
    """Create missing tables and add missing columns.

    A package has no migrations: its tables are created from their declarations when the projector
    starts. Columns are only ever added, as everywhere.

    Raises:
        SchemaTaken: Another program has tables in the schema.
        TableUnfit: An existing table does not fit its declaration.
        StoreUnavailable: Postgres does not answer.
    """
    if not tables:
        return
    with (
        store_edge("make the tables of installed packages"),
        psycopg.connect(own_dsn(dsn), connect_timeout=_CONNECT_TIMEOUT_S) as connection,
    ):
        schemas = schemas_of(dsn)
        connection.execute(statement("lock_migrations"))
        refuse_foreign(connection, schemas.tables)
        connection.execute(schemas.named_in(statement("create_schemas")))
        for table in tables:
            with _permitted(table):
                _make(connection, table, report)


def refuse_foreign(connection: psycopg.Connection, schema: str) -> None:
    """Check that the schema is Headwater's, or empty, or missing.

    Raises:
        SchemaTaken: Another program has tables in it. Nothing was changed.
    """
    foreign = [name for (name,) in connection.execute(statement("foreign_relations")).fetchall()]
    if foreign:
        raise SchemaTaken(
            f"expected the schema {schema} to be Headwater's own, found tables of another program "
            f"in it: {', '.join(foreign)}; nothing was changed. Set HEADWATER_POSTGRES_SCHEMA to "
            "another schema"
        )


@contextlib.contextmanager
def _permitted(table: Table) -> Iterator[None]:
    """Translate a missing privilege.

    Raises:
        TableUnfit: The login may not make or widen the table.
    """
    try:
        yield
    except errors.InsufficientPrivilege as error:
        raise TableUnfit(
            f"expected the table {table.name} as its package declares it, found that this login "
            f"may not change it ({error.diag.message_primary}); run `headwater migrate`"
        ) from error


def _make(connection: psycopg.Connection, table: Table, report: Callable[[str], None]) -> None:
    cursor = connection.execute(statement("columns_of_table"), {"name": table.name})
    present: dict[str, str] = dict(cursor.fetchall())
    if not present:
        report(f"Postgres: making the table {table.name}")
        connection.execute(ddl_of(table).encode())
    else:
        _widen(connection, table, present, report)


def _widen(
    connection: psycopg.Connection,
    table: Table,
    present: dict[str, str],
    report: Callable[[str], None],
) -> None:
    declared = {column.name: column.type for column in value_columns(table)}
    fixed = {column.name: column.type for column in key_columns(table)}
    fixed |= {name: definition.split()[0] for name, definition, _ in BOOKKEEPING}
    for name, type_ in (fixed | declared).items():
        expected_type, actual_type = _POSTGRES_NAMES.get(type_, type_), present.get(name)
        if actual_type is None and name in declared:
            report(f"Postgres: adding the column {name} to {table.name}")
            add = sql.SQL("alter table {} add column {} {}").format(
                sql.Identifier(table.name), sql.Identifier(name), sql.SQL(expected_type)
            )
            connection.execute(add)
        elif actual_type != expected_type:
            raise TableUnfit(
                f"expected the column {name} of {table.name} to be {expected_type}, found "
                f"{actual_type or 'none'}; usual causes: a table of another program, or a column "
                "whose type was changed (declare one of another name instead)"
            )
    owned = connection.execute(statement("owns_table"), {"name": table.name}).fetchone()
    if owned == (True,):
        # A projector with its own role leaves comments to `headwater migrate`.
        connection.execute("\n".join(column_comments(table)).encode())


# -- DDL

#: Additional last columns of every projection table: name, definition and comment.
BOOKKEEPING: Final = (
    (
        "column_sources",
        "json not null",
        "The delivery that set each column: "
        '{"deliveries": [{event_id, position, sent_at, version of the normalizer unless 1}], '
        '"columns": {column: index into deliveries}}. '
        "Read it with value_source(column_sources, 'column').",
    ),
    (
        "changed_in",
        "xid8 not null default pg_current_xact_id()",
        "Transaction that last wrote the row; sync reads changes in this order.",
    ),
    ("updated_at", "timestamptz not null", "When the projector last wrote the row."),
)


def ddl_of(table: Table) -> str:
    """Return the statements that create a projection table, its indexes and its comments."""
    key = ", ".join(table.key_names)
    definitions = ",\n    ".join([*_definitions(table), f"primary key ({key})"])
    # A key that begins with the user already serves queries by user.
    of_user = f"create index {table.name}_of_user on {table.name} (user_id);"
    return "\n".join(
        [
            f"create table {table.name} (\n    {definitions}\n);\n",
            *([] if table.key_names[0] == "user_id" else [of_user]),
            # Indexes make writes slower; here a whole batch shares one value.
            f"create index {table.name}_changed on {table.name} (changed_in);\n",
            *column_comments(table),
        ]
    )


def _definitions(table: Table) -> Iterator[str]:
    for stored in table.generated:
        yield f"{stored.name} {stored.sql} generated always as ({stored.expression}) stored"
    for index, column in enumerate(key_columns(table)):
        # Sync uses the empty text as a position before every key.
        check = f" check ({column.name} <> '')" if index == 0 else ""
        yield f"{column.name} {column.type} not null{check}"
    for value in value_columns(table):
        yield f"{value.name} {value.type}"
    for name, definition, _ in BOOKKEEPING:
        yield f"{name} {definition}"


def column_comments(table: Table) -> Iterator[str]:
    """Return the statements that comment on a table and its columns."""
    doc_of_table = row_schema_of(table.kind)["doc"]
    yield f"comment on table {table.name} is {quoted(f'{doc_of_table} Topic {table.topic}.')};"
    for name, doc in column_docs(table).items():
        yield f"comment on column {table.name}.{name} is {quoted(doc)};"


def column_docs(table: Table) -> dict[str, str]:
    """Return the meaning of every column of a projection table, in their order."""
    fields = row_schema_of(table.kind)["fields"][: -len(Stamps.__struct_fields__)]
    docs = {column.name: column.doc for column in table.generated}
    docs |= {field["name"]: field["doc"] for field in fields}
    docs |= {column.name: column.doc for column in table.times}
    return docs | {name: doc for name, _, doc in BOOKKEEPING}


def workflow_ddl(table: WorkflowTable) -> str:
    """Return the statement that creates a table of workflows; migrations add its indexes."""
    lines = [f"{_quoted(column.name)} {column.definition}" for column in table.columns]
    lines.append(f"primary key ({', '.join(table.key)})")
    storage = f" with ({table.storage})" if table.storage else ""
    definitions = ",\n    ".join(lines)
    return f"create table {table.name} (\n    {definitions}\n){storage};\n"


def workflow_comments(table: WorkflowTable) -> str:
    """Return the statements that comment on a table of workflows and its columns."""
    doc = " ".join((inspect.getdoc(table.kind) or "").split())
    lines = [f"comment on table {table.name} is {quoted(doc)};"]
    for column in table.columns:
        text = quoted(doc_of(table.kind, column.name))
        lines.append(f"comment on column {table.name}.{_quoted(column.name)} is {text};")
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    return f'"{name}"' if name == "offset" else name  # reserved in SQL


def quoted(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def main() -> None:
    """Print the statements of the named tables."""
    declared = {table.name: ddl_of(table) for table in ALL_TABLES}
    declared |= {
        table.name: f"{workflow_ddl(table)}\n{workflow_comments(table)}"
        for table in WORKFLOW_TABLES
    }
    for name in sys.argv[1:]:
        sys.stdout.write(declared[name] + "\n")


if __name__ == "__main__":
    main()
