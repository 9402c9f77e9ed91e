"""The logins of Headwater's processes: each has only the privileges that its process needs.

`headwater migrate --roles` creates missing ones without passwords. Every `headwater migrate` grants
their privileges, also on new tables. The migrating login owns the tables.
"""

from typing import Final

import psycopg
from psycopg import sql

from headwater.projections.errors import store_edge
from headwater.projections.postgres.schemas import own_dsn
from headwater.projections.postgres.statements import statement

__all__ = ["ROLES", "grant_roles", "make_roles"]

#: Process that logs in as a role, by role.
ROLES: Final = {
    "headwater_gateway": "the gateway (headwater serve)",
    "headwater_projector": "the projector (headwater project)",
    "headwater_worker": "workers (headwater worker)",
}
_CONNECT_TIMEOUT_S: Final = 5


def make_roles(dsn: str) -> list[str]:
    """Create missing roles without passwords; return their names.

    Raises:
        StoreUnavailable: Postgres does not answer.
        psycopg.errors.InsufficientPrivilege: The login may not create roles.
    """
    with (
        store_edge("make the roles of Headwater's processes"),
        psycopg.connect(own_dsn(dsn), connect_timeout=_CONNECT_TIMEOUT_S) as connection,
    ):
        connection.execute(statement("lock_migrations"))
        known = connection.execute(
            "select rolname from pg_roles where rolname = any(%s)", [[*ROLES]]
        )
        missing = sorted(ROLES.keys() - {name for (name,) in known.fetchall()})
        for name in missing:
            connection.execute(
                sql.SQL("create role {} login nosuperuser nocreatedb nocreaterole").format(
                    sql.Identifier(name)
                )
            )
    return missing


def grant_roles(connection: psycopg.Connection) -> None:
    """Grant existing roles the privileges that their processes need in this database."""
    connection.execute(statement("grant_roles"))
