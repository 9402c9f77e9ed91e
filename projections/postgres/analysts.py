"""What analysts see of Postgres: the documented tables and views, by a role that reads them alone.

`headwater migrate --reader NAME` makes the role, or brings it up to date. It has no password, so
that none is on a command line: whoever runs Postgres gives it one, or another way to log in.
"""

from typing import Final

import psycopg
from psycopg import sql

from headwater.projections.errors import store_edge
from headwater.projections.postgres.schemas import HEADWATER, own_dsn
from headwater.projections.postgres.statements import statement
from headwater.schemas.installed_tables import ALL_TABLES

#: Beside the projection tables: what became of deliveries. All else is Headwater's own affair.
_DOCUMENTED: Final = (
    "biomarkers_wide",
    "deliveries",
    "webhook_outcomes",
    "dead_letters",
    "traces",
    "effects",
)
#: What a session of the role begins with: it may wait longer than a service, and not for ever.
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
    """The tables and views that are for analysts, of those that this database has."""
    present = {name for (name,) in connection.execute(statement("export_tables")).fetchall()}
    names = (*(table.name for table in ALL_TABLES), *_DOCUMENTED)
    return tuple(name for name in dict.fromkeys(names) if name in present)


def make_reader(dsn: str, name: str) -> tuple[str, ...]:
    """Makes a role that reads what is documented and nothing else; returns what it reads.

    Shape:  a role of that name loses what it could read before, and keeps its password.
    Errors: StoreUnavailable; psycopg's own where the DSN may make no roles.
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
