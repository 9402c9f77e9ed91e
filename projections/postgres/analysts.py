"""Access of analysts to Postgres: a role that can read only the documented tables and views.

`headwater migrate --reader NAME` creates or updates the role. It has no password, so that none is
on a command line: the administrator of Postgres sets one, or another way to log in.
"""

from typing import Final

import psycopg
from psycopg import sql

from headwater.projections.errors import store_edge
from headwater.projections.postgres.schemas import HEADWATER, own_dsn
from headwater.projections.postgres.statements import statement
from headwater.schemas.installed_tables import ALL_TABLES

#: Documented tables in addition to the projection tables: the outcomes of deliveries. All others
#: are internal.
_DOCUMENTED: Final = (
    "biomarkers_wide",
    "deliveries",
    "webhook_outcomes",
    "dead_letters",
    "traces",
    "effects",
)
#: Session settings of the role: longer timeouts than for a service, but limited.
_SETTINGS: Final = {
    "statement_timeout": "60s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "60s",
    "default_transaction_read_only": "on",
    "timezone": "UTC",
    # So that queries name tables without their schema.
    "search_path": HEADWATER,
}
_CONNECT_TIMEOUT_S: Final = 5


def documented(connection: psycopg.Connection) -> tuple[str, ...]:
    """Return the tables and views for analysts that exist in this database."""
    present = {name for (name,) in connection.execute(statement("export_tables")).fetchall()}
    names = (*(table.name for table in ALL_TABLES), *_DOCUMENTED)
    return tuple(name for name in dict.fromkeys(names) if name in present)


def make_reader(dsn: str, name: str) -> tuple[str, ...]:
    """Create a role that can read only documented tables; return their names.

    An existing role of that name loses its other privileges and keeps its password.

    Raises:
        StoreUnavailable: Postgres does not answer.
        psycopg.errors.InsufficientPrivilege: The DSN's login may not create roles.
    """
    role = sql.Identifier(name)
    with (
        store_edge(f"make the role {name}"),
        psycopg.connect(own_dsn(dsn), connect_timeout=_CONNECT_TIMEOUT_S) as connection,
    ):
        connection.execute(statement("lock_migrations"))
        database = sql.Identifier(connection.info.dbname)
        known = connection.execute("select from pg_roles where rolname = %s", (name,))
        if known.fetchone() is None:
            connection.execute(sql.SQL("create role {} login nosuperuser").format(role))
        for setting, value in _SETTINGS.items():
            connection.execute(
                sql.SQL("alter role {} in database {} set {} = {}").format(
                    role, database, sql.Identifier(setting), sql.Literal(value)
                )
            )
        tables = documented(connection)
        for text in (
            "revoke all on all tables in schema {schema} from {role}",
            "grant connect on database {database} to {role}",
            "grant usage on schema {schema} to {role}",
            "grant select on {tables} to {role}",
        ):
            connection.execute(
                sql.SQL(text).format(
                    role=role,
                    database=database,
                    schema=sql.Identifier(HEADWATER),
                    tables=sql.SQL(", ").join(map(sql.Identifier, tables)),
                )
            )
    return tables
