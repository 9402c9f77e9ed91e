"""The logins of Headwater's parts: each reaches what its part needs of Postgres, and no more.

`headwater migrate --roles` makes those that are missing, without passwords. Every `headwater
migrate` grants what they need, also of tables that are new. The login that migrates owns them.
"""

from typing import Final

import psycopg
from psycopg import sql

from headwater.projections.errors import store_edge
from headwater.projections.postgres.schemas import own_dsn
from headwater.projections.postgres.statements import statement

__all__ = ["ROLES", "grant_roles", "make_roles"]

#: By role, which part logs in as it.
ROLES: Final = {
    "headwater_gateway": "the gateway (headwater serve)",
    "headwater_projector": "the projector (headwater project)",
    "headwater_worker": "workers (headwater worker)",
}
_CONNECT_TIMEOUT_S: Final = 5


def make_roles(dsn: str) -> list[str]:
    """Make the roles that are missing, without passwords; return their names.

    Raises:
        StoreUnavailable: No Postgres answered.
        psycopg.errors.InsufficientPrivilege: The login may make no roles.
    """
    with (
        store_edge("make the roles of Headwater's parts"),
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
    """Grant the roles that there are what their parts need of this database."""
    connection.execute(statement("grant_roles"))
