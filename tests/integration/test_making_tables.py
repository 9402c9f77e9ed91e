"""Tables of installed packages in a real Postgres: made, widened, refused if they are others."""

import psycopg
import pytest

from headwater.projections.errors import TableUnfit
from headwater.projections.postgres.connections import own_dsn
from headwater.projections.postgres.table_ddl import ddl_of, make_tables
from tests.fakes.toy_table import TOY_BOXES


def columns(dsn: str) -> list[str]:
    with psycopg.connect(own_dsn(dsn)) as connection:
        query = "select column_name from information_schema.columns where table_name = 'toy_boxes'"
        return [name for (name,) in connection.execute(query)]


def test_a_table_is_made_once(migrated: str):
    said: list[str] = []
    for _ in range(2):
        make_tables(migrated, said.append, [TOY_BOXES])
    assert said == ["Postgres: making the table toy_boxes"]
    assert {*TOY_BOXES.key_names, *TOY_BOXES.column_names} < set(columns(migrated))


def test_columns_that_were_declared_since_are_added(migrated: str):
    said: list[str] = []
    with psycopg.connect(own_dsn(migrated)) as connection:
        connection.execute(ddl_of(TOY_BOXES).encode())
        connection.execute("alter table toy_boxes drop column raw")
    make_tables(migrated, said.append, [TOY_BOXES])
    assert said == ["Postgres: adding the column raw to toy_boxes"]
    assert "raw" in columns(migrated)


@pytest.mark.parametrize(
    ("before", "fault"),
    [
        (
            "create table toy_boxes (id int)",
            "the column user_id of toy_boxes to be text, found none",
        ),
        (
            ddl_of(TOY_BOXES) + "alter table toy_boxes alter column toys type text",
            "the column toys of toy_boxes to be bigint, found text",
        ),
    ],
)
def test_a_table_that_is_another_one_is_refused(migrated: str, before: str, fault: str):
    with psycopg.connect(own_dsn(migrated)) as connection:
        connection.execute(before.encode())
    with pytest.raises(TableUnfit, match=fault):
        make_tables(migrated, print, [TOY_BOXES])
    with psycopg.connect(own_dsn(migrated)) as connection:
        connection.execute("select 1 from toy_boxes")


def test_nothing_is_asked_of_postgres_when_no_table_is_installed():
    make_tables("postgresql://127.0.0.1:1/none", print, ())
