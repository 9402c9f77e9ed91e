"""The role that the SQL of steps runs as: it reaches tables of authors, and none of Headwater's.

Authors keep their tables in the same schema. Those that the role of the migrations makes there are
open to steps, also later ones; those that Headwater makes are shut. A step's transaction begins as
the worker's own role, writes its commit row, and goes on as this one.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

import psycopg
from psycopg import errors, sql

from headwater.projections.postgres.statements import statement

STEP_ROLE: Final = "headwater_steps"
#: What a migration makes that can be read or written.
_MADE: Final = re.compile(rb"^create (?:unlogged )?(?:table|view|sequence) (\w+)", re.MULTILINE)


def relations_of(migration: bytes) -> tuple[str, ...]:
    """The tables and views that a migration makes."""
    return tuple(name.decode() for name in _MADE.findall(migration))


def open_to_steps(
    connection: psycopg.Connection, ours: Iterable[str], report: Callable[[str], None]
) -> None:
    """Makes the role, or brings it up to date, in the transaction at hand.

    Shape:  ours are the tables and views that it must not reach. Where roles may not be made it is
            said what whoever may has to do.
    """
    try:
        with connection.transaction():
            connection.execute(statement("make_step_role"))
    except errors.InsufficientPrivilege as error:
        user = connection.info.user
        report(
            f"Postgres: {user} may not make the role {STEP_ROLE}, as which the SQL of steps runs "
            f"({error.diag.message_primary}). Until somebody who may has run `create role "
            f"{STEP_ROLE} nologin; grant {STEP_ROLE} to {user}`, and `headwater migrate` again, no "
            "worker takes workflows that could use tx.execute"
        )
        return
    connection.execute(statement("open_to_steps"))
    shut_to_steps(connection, ours)


def shut_to_steps(connection: psycopg.Connection, ours: Iterable[str]) -> None:
    """Takes tables and views from the role, if there is one."""
    role = connection.execute("select from pg_roles where rolname = %s", (STEP_ROLE,))
    if role.fetchone() is not None:
        connection.execute(
            sql.SQL("revoke all on {} from {}").format(
                sql.SQL(", ").join(map(sql.Identifier, ours)), sql.Identifier(STEP_ROLE)
            )
        )
