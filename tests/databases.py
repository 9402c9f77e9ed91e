"""Databases of their own for tests, on the Postgres that they share."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Final

import psycopg
from psycopg import conninfo, sql

from headwater.projections.postgres.connections import AUTHORS, HEADWATER, with_search_path
from headwater.projections.postgres.migrate import migrate

_NUMBERS = itertools.count(1)

#: All that a migrated database has but rows, as one text: what tests may change or add.
_SHAPE: Final = """
select md5(string_agg(part, ' ' order by part)) from (
    select concat_ws(' ', c.oid::regclass, relkind, relowner, relacl, reloptions,
        (select string_agg(concat_ws(' ', attname, atttypid, attnotnull, attisdropped, attacl),
            ' ' order by attnum) from pg_attribute where attrelid = c.oid and attnum > 0),
        (select string_agg(pg_get_constraintdef(oid), ' ' order by oid) from pg_constraint
            where conrelid = c.oid),
        (select string_agg(tgname, ' ' order by oid) from pg_trigger where tgrelid = c.oid))
    from pg_class c join pg_namespace n on n.oid = relnamespace
    where nspname !~ '^(pg_|information_schema)'
    union all select concat_ws(' ', nspname, nspowner, nspacl) from pg_namespace
        where nspname !~ '^pg_(toast_)?temp_'
    union all select concat_ws(' ', oid::regprocedure, prosrc, proacl) from pg_proc
        where oid >= 16384
    union all select concat_ws(' ', typname, typowner) from pg_type where oid >= 16384
    union all select concat_ws(' ', setrole, setconfig) from pg_db_role_setting
        where setdatabase in (select oid from pg_database where datname = current_database())
    union all select datacl::text from pg_database where datname = current_database()
    union all select extname from pg_extension
) parts(part)
"""
_TABLES: Final = """
select format('%I.%I', nspname, relname)
from pg_class c join pg_namespace n on n.oid = relnamespace
where relkind = 'r' and nspname !~ '^(pg_|information_schema)' order by 1
"""


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


class MigratedDatabases:
    """Migrated databases, lent one after the other.

    To make one and to drop it takes a quarter of a second of processor time. So one is emptied and
    lent again, unless whoever had it has changed more than rows.
    """

    def __init__(self, postgres: str, template: str) -> None:
        self._postgres, self._template = postgres, template
        self._database = contextlib.ExitStack()
        self._dsn = ""
        #: What the database is like that nobody has used: shape, and rows of tables that have some.
        self._unused: tuple[str, dict[str, str]] = "", {}

    def close(self) -> None:
        """Drop the last one."""
        self._database.close()

    @contextlib.contextmanager
    def lent(self) -> Iterator[str]:
        """Yield the DSN of a database with the tables of this release, for one test at a time."""
        if not self._dsn:
            made = new_migrated_database(self._postgres, self._template)
            self._dsn = self._database.enter_context(made)
            with psycopg.connect(self._dsn) as connection:
                self._unused = _state(connection)
        yield self._dsn
        if not self._emptied():
            self._dsn = ""
            self._database.close()

    def _emptied(self) -> bool:
        """Whether the database is again as it was."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            # Sessions at rest hold no locks, and may be those of a gateway that many tests share.
            connection.execute(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity "
                "where datname = current_database() and state <> 'idle' and pid <> pg_backend_pid()"
            )
            # Of no two that are used is the identity the same.
            connection.execute("truncate headwater.projection_identity")
            connection.execute("insert into headwater.projection_identity default values")
            shape, filled = _state(connection)
            if shape != self._unused[0]:
                return False
            used = sorted(filled.keys() - self._unused[1].keys())
            if used:
                connection.execute(f"truncate {', '.join(used)} restart identity".encode())
        return {name: filled.get(name) for name in self._unused[1]} == self._unused[1]


def _state(connection: psycopg.Connection) -> tuple[str, dict[str, str]]:
    """The shape of a database, and a digest of the rows of each table that has any.

    Not those of the identity, which differs.
    """
    shape = connection.execute(_SHAPE).fetchone()
    names = [name for (name,) in connection.execute(_TABLES)]
    query = " union all ".join(
        f"select '{name}', (select md5(string_agg(t::text, ' ' order by t::text)) from "  # noqa: S608
        f"(select * from {name} limit 100) t)"
        for name in names
        if name != "headwater.projection_identity"
    )
    filled = connection.execute(query.encode()).fetchall()
    assert shape is not None
    return shape[0], {name: digest for name, digest in filled if digest}
