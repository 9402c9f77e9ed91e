"""Databases of their own for tests, on the Postgres that they share."""

import contextlib
import itertools
from collections.abc import Iterator

import psycopg
from psycopg import conninfo, sql

from headwater.projections.postgres.connections import AUTHORS, HEADWATER, with_search_path
from headwater.projections.postgres.migrate import migrate

_NUMBERS = itertools.count(1)


def of_authors(dsn: str) -> str:
    """The DSN of a database for sessions that create and read tables of authors, and read ours."""
    return with_search_path(dsn, AUTHORS, HEADWATER)


@contextlib.contextmanager
def new_database(postgres: str, template: str = "template1") -> Iterator[str]:
    """Yield the DSN of a new database, a copy of a template, and drop it at the end."""
    name = f"test_{next(_NUMBERS)}"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
    yield conninfo.make_conninfo(postgres, dbname=name)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextlib.contextmanager
def new_migrated_database(postgres: str, template: str) -> Iterator[str]:
    """Yield the DSN of a new database with the tables of this release.

    Args:
        postgres: DSN of the server.
        template: A migrated database. To copy it takes half the time of all migrations.
    """
    with new_database(postgres, template) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("update headwater.projection_identity set id = default")
        # Rights and search paths belong to a database and are not copied.
        migrate(dsn, lambda _: None)
        yield dsn
