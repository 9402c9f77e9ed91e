"""The DDL of a projection table, generated from its declaration.

`python -m headwater.projections.postgres.table_ddl NAME` prints it. Released migrations are never
changed, so the text is copied into a migration by hand, and a test compares the two.
"""

import sys
from collections.abc import Iterator
from typing import Final

from headwater.projections.postgres.statements import key_columns, value_columns
from headwater.schemas.installed_tables import ALL_TABLES
from headwater.schemas.struct_schemas import row_schema_of
from headwater.schemas.tables import Table

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
    schema = row_schema_of(table.kind)
    docs = {column.name: column.doc for column in table.generated}
    docs |= {field["name"]: field["doc"] for field in schema["fields"][:-2]}
    docs |= {column.name: column.doc for column in table.times}
    docs |= {name: doc for name, _, doc in BOOKKEEPING}
    yield f"comment on table {table.name} is {_text(schema['doc'] + f' Topic {table.topic}.')};"
    for name, doc in docs.items():
        yield f"comment on column {table.name}.{name} is {_text(doc)};"


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def main() -> None:
    """Print the statements of the named tables."""
    declared = {table.name: table for table in ALL_TABLES}
    for name in sys.argv[1:]:
        sys.stdout.write(ddl_of(declared[name]) + "\n")


if __name__ == "__main__":
    main()
