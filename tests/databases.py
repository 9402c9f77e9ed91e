"""Databases of their own for tests, on the Postgres that they share."""

import contextlib
import itertools
from collections.abc import Iterator

import psycopg
from psycopg import conninfo, sql

_NUMBERS = itertools.count(1)


@contextlib.contextmanager
def new_database(postgres: str) -> Iterator[str]:
    """The DSN of a new, empty database, which goes at the end."""
    name = f"test_{next(_NUMBERS)}"
    database = sql.Identifier(name)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(database))
    where = conninfo.conninfo_to_dict(postgres)
    yield f"postgresql://{where['user']}@{where['host']}:{where['port']}/{name}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(database))
