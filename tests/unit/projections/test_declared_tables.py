"""Goal: a table is declared once, and everything that is known of it follows."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from importlib.resources import files

import pytest

from headwater.gateway.cli.sync import sqlite_table
from headwater.projections.postgres.person_view import person_view_ddl
from headwater.projections.postgres.table_ddl import ddl_of, workflow_comments, workflow_ddl
from headwater.projections.postgres.wide_view import wide_view_ddl
from headwater.projections.postgres.writes import upsert_of
from headwater.schemas.avro_schemas import row_schema_of
from headwater.schemas.tables import DAILY_SUMMARY, TABLES, Table
from headwater.schemas.topics import Cleanup, topic_of
from headwater.schemas.workflow_columns import WorkflowTable
from headwater.schemas.workflow_tables import WORKFLOW_TABLES
from tests.fakes.toy_table import TOY_BOXES

DDL = """\
create table toy_boxes (
    user_id text not null check (user_id <> ''),
    opened_at timestamptz not null,
    toys bigint,
    complete boolean,
    raw json,
    complete_since timestamptz,
    column_sources json not null,
    changed_in xid8 not null default pg_current_xact_id(),
    updated_at timestamptz not null,
    primary key (user_id, opened_at)
);

create index toy_boxes_changed on toy_boxes (changed_in);

comment on table toy_boxes is 'A box of a user''s toys. Topic toy-boxes.';
comment on column toy_boxes.user_id is 'Our user.';
comment on column toy_boxes.opened_at is 'When it was opened.';
comment on column toy_boxes.toys is 'How many toys it holds; the owner''s own count.';
"""


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_migrations_make_the_tables_as_they_are_declared(table: Table):
    folder = files("headwater.projections").joinpath("migrations")
    migrations = [path.read_text("utf-8") for path in folder.iterdir()]
    assert sum(ddl_of(table) in text for text in migrations) == 1, (
        f"expected one migration to hold the text that `python -m "
        f"headwater.projections.postgres.table_ddl {table.name}` prints"
    )


@pytest.mark.parametrize("table", WORKFLOW_TABLES, ids=lambda table: table.name)
def test_a_migration_makes_the_tables_of_workflows_as_they_are_declared(table: WorkflowTable):
    folder = files("headwater.projections").joinpath("migrations")
    migration = folder.joinpath("0004_workflows.sql").read_text("utf-8")
    for text in (workflow_ddl(table), workflow_comments(table)):
        assert text in migration, (
            f"expected the migration to hold the text that `python -m "
            f"headwater.projections.postgres.table_ddl {table.name}` prints"
        )


def test_a_declared_table_has_a_topic():
    topic = topic_of(TOY_BOXES)
    assert (topic.name, topic.value, topic.cleanup) == ("toy-boxes", "toy_box", Cleanup.COMPACT)
    assert topic.key == "row key, partitioned by user"


def test_a_declared_table_has_an_avro_schema():
    schema = row_schema_of(TOY_BOXES.kind)
    assert schema["name"] == "ToyBox"
    fields = {field["name"]: field for field in schema["fields"]}
    columns = [*TOY_BOXES.key_names, *TOY_BOXES.column_names]
    assert list(fields) == [*columns, "stamps", "stamp_of", "state"]
    assert (fields["opened_at"]["type"], fields["opened_at"]["key"]) == ("string", True)
    assert fields["toys"]["type"] == ["null", "long"]
    assert fields["raw"]["doc"] == "The box as it was sent."


def test_a_declared_table_has_its_sql():
    assert ddl_of(TOY_BOXES).startswith(DDL)
    assert "comment on column toy_boxes.complete_since is 'When it became complete.';" in ddl_of(
        TOY_BOXES
    )
    upsert = upsert_of(TOY_BOXES).decode()
    assert 'r."opened_at"::timestamptz' in upsert
    assert '"complete_since" = excluded."complete_since"' in upsert


def test_a_declared_table_has_a_copy_in_sqlite():
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(sqlite_table(TOY_BOXES))
        columns = database.execute("PRAGMA table_info(toy_boxes)").fetchall()
    assert [(name, kind) for _, name, kind, *_ in columns] == [
        ("user_id", "TEXT"),
        ("opened_at", "TEXT"),
        ("toys", "INTEGER"),
        ("complete", "INTEGER"),
        ("raw", "TEXT"),
        ("complete_since", "TEXT"),
        ("updated_at", "TEXT"),
    ]
    assert [bool(key) for *_, key in columns] == [True, True] + [False] * 5


@pytest.mark.parametrize("ddl", [wide_view_ddl, person_view_ddl])
def test_a_migration_makes_the_views_that_follow_from_declarations(ddl: Callable[[], str]):
    folder = files("headwater.projections").joinpath("migrations")
    migrations = [path.read_text("utf-8") for path in folder.iterdir()]
    assert sum(ddl() in text for text in migrations) == 1, (
        f"expected one migration to hold the text that `python -m {ddl.__module__}` prints"
    )


def test_the_day_of_a_person_has_all_columns_of_a_day():
    view = person_view_ddl()
    for column in DAILY_SUMMARY.columns:
        assert f"comment on column daily_summary_by_person.{column.name} is" in view
