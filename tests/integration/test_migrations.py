"""Migrations on a real Postgres, and what they must agree on with the schemas."""

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql

from headwater.gateway.cli.main import cli
from headwater.gateway.cli.up import _migrate as migrate_of_up
from headwater.gateway.settings.environment import load_settings
from headwater.projections.deliveries.row_readers import table_row, table_row_reader
from headwater.projections.errors import DatabaseTooNew, MigrationChanged
from headwater.projections.postgres.binary_rows import BinaryRows, BinaryRowsDumper, array_of
from headwater.projections.postgres.migrate import Migration, catalogue, migrate
from headwater.projections.postgres.roles import documented
from headwater.projections.postgres.statements import (
    key_columns,
    read_columns,
    statement,
    value_columns,
)
from headwater.projections.postgres.table_ddl import ddl_of
from headwater.projections.postgres.writes import upsert_of
from headwater.schemas.avro_schemas import NEWEST, row_schema_of, schema_text
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.records import Stamp
from headwater.schemas.tables import TABLES, Stamps, Table
from headwater.schemas.writers import fields_writer_of
from tests.fakes.toy_table import TOY_BOXES, ToyBox

BOOKKEEPING = {"column_sources", "changed_in", "updated_at"}


def silent(line: str) -> None:
    del line


@pytest.fixture
def migrated(fresh_database: str) -> Iterator["psycopg.Connection[tuple[str, ...]]"]:
    migrate(fresh_database, silent)
    with psycopg.connect(fresh_database, autocommit=True) as connection:
        yield connection


def test_every_migration_is_applied_once(fresh_database: str):
    said: list[str] = []
    names = [migration.name for migration in catalogue()]
    assert migrate(fresh_database, said.append) == names
    assert sum("applying migration" in line for line in said) == len(names)
    assert migrate(fresh_database, said.append) == []


def test_numbers_of_migrations_are_gapless():
    assert [m.version for m in catalogue()] == list(range(1, len(catalogue()) + 1))


def test_the_command_says_as_json_what_it_has_done(fresh_database: str):
    def told(*more: str) -> dict[str, object]:
        command = ["migrate", "--postgres", fresh_database, "--json", *more]
        ended = CliRunner().invoke(cli, command)
        assert ended.exit_code == 0, ended.output
        result: dict[str, object] = json.loads(ended.stdout)
        return result

    names = [migration.name for migration in catalogue()]
    assert told() == {"applied": names, "reader": None, "readable": None}
    role = "reader_of_migrations"
    again = told("--reader", role)
    with psycopg.connect(fresh_database, autocommit=True) as connection:
        tables = list(documented(connection))
        connection.execute(sql.SQL("drop owned by {}").format(sql.Identifier(role)))
        connection.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))
    assert again == {"applied": [], "reader": role, "readable": tables}


def test_two_that_start_together_do_not_collide(fresh_database: str):
    applied: list[list[str]] = []
    starts = [
        threading.Thread(target=lambda: applied.append(migrate(fresh_database, silent)))
        for _ in range(2)
    ]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    assert sorted(map(len, applied)) == [0, len(catalogue())]


def test_an_edited_migration_is_refused(fresh_database: str):
    migrate(fresh_database, silent)
    first, *rest = catalogue()
    edited = Migration(version=first.version, name=first.name, sql=first.sql + b"-- more\n")
    with pytest.raises(MigrationChanged, match=first.name):
        migrate(fresh_database, silent, (edited, *rest))


def test_a_newer_database_is_refused(fresh_database: str):
    migrate(fresh_database, silent)
    with pytest.raises(DatabaseTooNew, match=f"migration {len(catalogue())}"):
        migrate(fresh_database, silent, catalogue()[:-1])


def test_a_failing_migration_leaves_nothing_behind(fresh_database: str):
    broken = Migration(version=2, name="0002_broken", sql=b"create table a (); selekt")
    with pytest.raises(psycopg.errors.SyntaxError):
        migrate(fresh_database, silent, (catalogue()[0], broken))
    with psycopg.connect(fresh_database) as connection:
        tables = connection.execute("select * from pg_tables where schemaname = 'headwater'")
        assert tables.fetchall() == []


def test_no_postgres_is_store_unavailable():
    with pytest.raises(StoreUnavailable, match="expected Postgres to apply the migrations"):
        migrate("postgresql://nobody@127.0.0.1:1/none", silent)


def columns_of(connection: "psycopg.Connection[tuple[str, ...]]", table: str):
    result = connection.execute(
        """
        select attname, format_type(atttypid, atttypmod), col_description(attrelid, attnum)
        from pg_attribute
        where attrelid = %s::regclass and attnum > 0 and not attisdropped
        """,
        [table],
    )
    return {name: (kind, comment) for name, kind, comment in result.fetchall()}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_columns_types_and_comments_are_those_of_the_schema(
    migrated: "psycopg.Connection[tuple[str, ...]]", table: Table
):
    result = columns_of(migrated, table.name)
    short = {"timestamp with time zone": "timestamptz"}
    kinds = {name: short.get(kind, kind) for name, (kind, _) in result.items()}
    expected = {column.name: column.type for column in (*key_columns(table), *value_columns(table))}
    expected |= {column.name: column.sql for column in table.generated}
    assert {n: k for n, k in kinds.items() if n not in BOOKKEEPING} == expected
    schema = json.loads(schema_text(NEWEST[table.schema]))
    docs = {field["name"]: field["doc"] for field in schema["fields"][:-3]}
    assert {name: result[name][1] for name in docs} == docs
    [comment] = migrated.execute("select obj_description(%s::regclass)", [table.name]).fetchall()
    assert comment[0] == f"{schema['doc']} Topic {table.topic}."
    key = migrated.execute(
        """
        select a.attname from pg_index i join pg_attribute a
          on a.attrelid = i.indrelid and a.attnum = any (i.indkey)
        where i.indrelid = %s::regclass and i.indisprimary order by a.attnum
        """,
        [table.name],
    )
    assert [name for (name,) in key.fetchall()] == [column.name for column in table.key]


def test_every_table_view_column_and_function_is_described(
    migrated: "psycopg.Connection[tuple[str, ...]]",
):
    tables = migrated.execute(
        "select tablename from pg_tables where schemaname = 'headwater' "
        "union all select viewname from pg_views where schemaname = 'headwater'"
    )
    for (table,) in tables.fetchall():
        described = migrated.execute("select obj_description(%s::regclass)", [table]).fetchone()
        assert described is not None
        assert described[0], table
        assert all(doc for _, doc in columns_of(migrated, table).values()), table
    bare = migrated.execute(
        "select proname from pg_proc where pronamespace = 'headwater'::regnamespace "
        "and obj_description(oid) is null"
    )
    assert bare.fetchall() == []


def test_the_id_of_a_connection_comes_from_terra_s(
    migrated: "psycopg.Connection[tuple[str, ...]]",
):
    insert = "insert into terra_connections (terra_user_id, column_sources, updated_at) values "
    migrated.execute(insert + "('t1', '{}', now())")
    [result] = migrated.execute("select id = md5('t1')::uuid from terra_connections").fetchall()
    assert result == (True,)
    with pytest.raises(psycopg.errors.CheckViolation):
        migrated.execute(insert + "('', '{}', now())")


def test_postgres_takes_a_declared_table_and_its_rows(
    migrated: "psycopg.Connection[tuple[str, ...]]",
):
    migrated.execute(ddl_of(TOY_BOXES).encode())
    schema, types = row_schema_of(ToyBox), get_type_hints(ToyBox) | get_type_hints(Stamps)
    stamp = Stamp(0, 1_782_950_400_000, 0, "e1", 3, 17)
    box = ("u", "2026-07-01T08:00:00+02:00", 3, True, '{"b": 1, "a":2}', [stamp], b"\0\0\0", "")
    row, _ = table_row_reader(TOY_BOXES)(schema)(fields_writer_of(schema, types, b"")(*box), 0)
    migrated.adapters.register_dumper(BinaryRows, BinaryRowsDumper)
    migrated.execute(table_row(TOY_BOXES).creation)
    [(_, oid)] = migrated.execute(statement("row_types")).fetchall()
    migrated.execute(upsert_of(TOY_BOXES), {"rows": array_of(oid, [row]), "now_ms": 0})
    query = sql.SQL("select {} from toy_boxes").format(read_columns(TOY_BOXES))
    [(user, opened, toys, complete, raw, since)] = migrated.execute(query).fetchall()
    assert (user, toys, complete, raw) == ("u", 3, True, '{"b": 1, "a":2}')
    assert (opened.isoformat(), since.day) == ("2026-07-01T06:00:00+00:00", 2)


def test_the_login_that_migrates_finds_the_tables_and_creates_elsewhere(fresh_database: str):
    for _ in range(2):
        migrate(fresh_database, lambda _: None)
    with psycopg.connect(fresh_database) as connection:
        result = connection.execute("show search_path").fetchone()
        assert result == ("public, headwater",)
        connection.execute("select * from daily_summary")
        connection.execute("create table of_another_program (i int)")
        position = "select relnamespace::regnamespace::text from pg_class where relname = %s"
        result = connection.execute(position, ["of_another_program"]).fetchone()
        assert result == ("public",)


def test_up_says_which_folder_may_go_when_migrations_have_changed(
    fresh_database: str, tmp_path: Path
):
    migrate(fresh_database, lambda _: None)
    with psycopg.connect(fresh_database) as connection:
        connection.execute("update schema_migrations set checksum = 'another'")
    settings = load_settings(postgres=fresh_database, data_dir=tmp_path)
    with pytest.raises(MigrationChanged, match=re.escape(f"rm -r {tmp_path}/postgres")) as reported:
        migrate_of_up(settings, embedded=True)
    assert "idempotency keys" in str(reported.value), "Kafka does not have these"
    with pytest.raises(MigrationChanged, match="put the change into a new migration"):
        migrate_of_up(settings, embedded=False)
