"""Databases of their own for tests, on the Postgres that they share."""

import contextlib
import itertools
from collections.abc import Iterator

import psycopg
from psycopg import conninfo, sql

from headwater.projections.postgres.schemas import AUTHORS, HEADWATER, with_search_path

_NUMBERS = itertools.count(1)


def of_authors(dsn: str) -> str:
    """The DSN of a database for sessions that create and read tables of authors, and read ours."""
    return with_search_path(dsn, AUTHORS, HEADWATER)


@contextlib.contextmanager
def new_database(postgres: str) -> Iterator[str]:
    """The DSN of a new, empty database, which goes at the end."""
    name = f"test_{next(_NUMBERS)}"
    database = sql.Identifier(name)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(database))
    yield conninfo.make_conninfo(postgres, dbname=name)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(database))
