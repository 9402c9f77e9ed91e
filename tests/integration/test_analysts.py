"""The analysts' role, and the page that says what it sees."""

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo, sql

from headwater.projections.postgres.dictionary import dictionary, written
from headwater.projections.postgres.exporting import exported
from headwater.projections.postgres.roles import documented, make_reader

PAGE = Path(__file__).resolve().parents[2] / "docs" / "data" / "README.md"
QUERIES = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
ROLE = "analyst of the tests"


@pytest.fixture(scope="module")
def analyst(module_migrated: str) -> Iterator[str]:
    """The DSN of the role."""
    assert make_reader(module_migrated, ROLE) == make_reader(module_migrated, ROLE)
    with psycopg.connect(module_migrated) as connection:
        connection.execute(
            sql.SQL("alter role {} password 'of the tests'").format(sql.Identifier(ROLE))
        )
    yield conninfo.make_conninfo(module_migrated, user=ROLE, password="of the tests")
    with psycopg.connect(module_migrated) as connection:
        connection.execute(sql.SQL("drop owned by {0}").format(sql.Identifier(ROLE)))
        connection.execute(sql.SQL("drop role {0}").format(sql.Identifier(ROLE)))


def test_the_page_says_what_the_comments_in_postgres_say(analyst: str):
    with psycopg.connect(analyst) as connection:
        made = dictionary(connection)
    page = PAGE.read_text("utf-8")
    assert written(page, made) == page, "docs/data/README.md is stale: make dictionary"
    lines = [line for line in made.splitlines() if line.startswith("| `")]
    assert len(lines) > 100
    assert not [line for line in lines if line.endswith("|  |")], "columns without a comment"


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.split("\n")[0])
def test_every_query_of_the_page_runs_as_the_role(analyst: str, query: str):
    with psycopg.connect(analyst) as connection:
        connection.execute(query.encode()).fetchall()


def test_the_query_of_missing_units_lists_no_value_that_has_a_column(
    analyst: str, module_migrated: str
):
    (query,) = (query for query in QUERIES if "unconverted" in query)
    with psycopg.connect(module_migrated, autocommit=True) as connection:
        connection.execute(
            "insert into biomarkers_raw (user_id, source, date, code, value, unit, column_sources,"
            " updated_at) select 'user_1', 'terra_lab', '2026-07-01', code, 5, unit, '{}', now()"
            " from (values ('ldl', 'mg/dL'), ('glucose', 'furlongs'), ('of a lab', null))"
            " v (code, unit)"
        )
    with psycopg.connect(analyst) as connection:
        assert connection.execute(query.encode()).fetchall() == [("glucose", "furlongs", 1)]
    with psycopg.connect(module_migrated, autocommit=True) as connection:
        connection.execute("truncate biomarkers_raw")


def test_the_role_reads_what_is_documented_and_nothing_else(analyst: str, module_migrated: str):
    with psycopg.connect(module_migrated) as connection:
        every = [
            name
            for (name,) in connection.execute(
                "select relname from pg_class where relkind in ('r', 'v', 'p')"
                " and relnamespace = 'headwater'::regnamespace"
            )
        ]
        known = documented(connection)
    with psycopg.connect(analyst, autocommit=True) as connection:
        readable = set()
        for name in every:
            try:
                connection.execute(sql.SQL("select from {}").format(sql.Identifier(name)))
                readable.add(name)
            except psycopg.errors.InsufficientPrivilege:
                pass
    assert readable == set(known)
    assert {"daily_summary", "deliveries", "pull_requests"} <= readable
    assert {"schema_migrations", "projection_offsets", "step_commits"} <= set(every) - readable


@pytest.mark.parametrize(
    "statement",
    [
        "insert into daily_summary (user_id) values ('u')",
        "delete from pushes",
        "create table mine (i int)",
        "update terra_connections set active = false",
    ],
)
def test_the_role_changes_nothing_even_in_a_transaction_that_may_write(
    analyst: str, statement: str
):
    refused = (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction)
    with psycopg.connect(analyst) as connection:
        connection.execute("set transaction read write")
        with pytest.raises(refused):
            connection.execute(statement.encode())


def test_the_role_exports_all_that_is_documented(analyst: str, module_migrated: str):
    with psycopg.connect(module_migrated) as connection:
        connection.execute(
            "insert into users (id, column_sources, updated_at)"
            " values ('user_2', '{}', now()), ('user_1', '{}', now())"
        )
        names = documented(connection)
    assert len(names) > 10
    for name in names:
        with exported(module_migrated, name) as whole, exported(analyst, name) as result:
            assert result.columns == whole.columns
            rows = [row for batch in result.batches for row in batch]
            if name == "users":
                assert [row[0] for row in rows] == ["user_1", "user_2"]


def test_a_query_of_the_role_ends_after_a_minute(analyst: str):
    with psycopg.connect(analyst) as connection:
        assert connection.execute("show statement_timeout").fetchone() == ("1min",)
        assert connection.execute("show timezone").fetchone() == ("UTC",)
