"""Roles and logins in Postgres: of Headwater's processes, of the SQL of steps, and of analysts.

`headwater migrate --roles` creates missing ones without passwords. Every `headwater migrate` grants
their privileges, also on new tables. The migrating login owns the tables.
"""

import secrets
from collections.abc import Callable
from typing import Final

import psycopg
from psycopg import errors, sql

from headwater.projections.errors import store_edge
from headwater.projections.postgres.connections import HEADWATER, Schemas, own_dsn, schemas_of
from headwater.projections.postgres.statements import statement
from headwater.schemas.installed_tables import ALL_TABLES

#: Process that logs in as a role, by role. Those of another schema begin with its name.
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
    schema = schemas_of(dsn).tables
    names = [name.replace(HEADWATER, schema, 1) for name in ROLES]
    with (
        store_edge("make the roles of Headwater's processes"),
        psycopg.connect(own_dsn(dsn), connect_timeout=_CONNECT_TIMEOUT_S) as connection,
    ):
        connection.execute(statement("lock_migrations"))
        known = connection.execute("select rolname from pg_roles where rolname = any(%s)", [names])
        missing = sorted({*names} - {name for (name,) in known.fetchall()})
        for name in missing:
            connection.execute(
                sql.SQL("create role {} login nosuperuser nocreatedb nocreaterole").format(
                    sql.Identifier(name)
                )
            )
    return missing


# -- steps

_PASSWORD_BYTES: Final = 32
#: Bytes of a name in Postgres, which truncates longer ones.
_NAME_MAX: Final = 63


def open_to_steps(
    connection: psycopg.Connection, schemas: Schemas, report: Callable[[str], None]
) -> None:
    """Create or update the role and the login, in the current transaction.

    The role, `headwater_steps`, reads, writes and creates tables in the authors' schema. Of
    Headwater's own objects it can use only the function that writes the commit row of a step. Each
    database has its own login in that role, with a random password that is stored in the table
    `step_login` for workers.

    Args:
        connection: As the migrating login.
        schemas: Schemas and roles of this installation.
        report: Called with instructions for a database administrator if roles cannot be created.
    """
    role = schemas.steps
    try:
        with connection.transaction():
            connection.execute(schemas.named_in(statement("make_step_role")))
            connection.execute(schemas.named_in(statement("open_to_steps")))
    except errors.InsufficientPrivilege as error:
        report(
            f"Postgres: {connection.info.user} may not make the role {role}, which the SQL of "
            f"steps runs as ({error.diag.message_primary}). Until a superuser has run `create role "
            f"{role} nologin` and `headwater migrate` has run again, no worker with "
            "HEADWATER_POSTGRES runs workflows"
        )
        return
    try:
        with connection.transaction():
            _keep_login(connection, role)
            connection.execute(statement("make_step_login"))
    except errors.InsufficientPrivilege as error:
        connection.execute("delete from step_login")
        report(
            f"Postgres: {connection.info.user} may not make a login for the SQL of steps "
            f"({error.diag.message_primary}). Have a superuser run `create role "
            f"{login_of(connection, role)} login in role {role}`, give it a password, and give "
            "workers its DSN as HEADWATER_STEPS_POSTGRES"
        )


def login_of(connection: psycopg.Connection, role: str) -> str:
    """Return the name of the login in the role of steps for the database of a connection."""
    name = f"{role}_{connection.info.dbname}"
    if len(name.encode()) <= _NAME_MAX:
        return name
    cursor = connection.execute("select oid from pg_database where datname = current_database()")
    return f"{role}_{(cursor.fetchone() or ('',))[0]}"


def _keep_login(connection: psycopg.Connection, role: str) -> None:
    """Store a random password, unless there is one."""
    name, password = login_of(connection, role), secrets.token_urlsafe(_PASSWORD_BYTES)
    # Only the verifier appears in statements that the server may log.
    verifier = connection.pgconn.encrypt_password(
        password.encode(), name.encode(), b"scram-sha-256"
    )
    parameters = {"name": name, "password": password, "verifier": verifier.decode()}
    connection.execute(statement("keep_step_login"), parameters)


# -- analysts

#: Documented tables in addition to the projection tables: the outcomes of deliveries. All others
#: are internal.
_DOCUMENTED: Final = (
    "daily_summary_by_person",
    "biomarkers_wide",
    "deliveries",
    "webhook_outcomes",
    "dead_letters",
    "traces",
    "effects",
    "data_quality",
    "rejected_values",
    "skipped_deliveries",
    "connection_activity",
)
#: Session settings of the role: longer timeouts than for a service, but limited.
_SETTINGS: Final = {
    "statement_timeout": "60s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "60s",
    "default_transaction_read_only": "on",
    "timezone": "UTC",
}
_ANALYST_CONNECT_TIMEOUT_S: Final = 5


def documented(connection: psycopg.Connection) -> tuple[str, ...]:
    """Return the tables and views for analysts that exist in this database."""
    present = {name for (name,) in connection.execute(statement("export_tables")).fetchall()}
    names = (*(table.name for table in ALL_TABLES), *_DOCUMENTED)
    return tuple(name for name in dict.fromkeys(names) if name in present)


def make_reader(dsn: str, name: str) -> tuple[str, ...]:
    """Create a role that can read only documented tables; return their names.

    `headwater migrate --reader NAME` calls it. The role has no password, so that none is on a
    command line: the administrator of Postgres sets one, or another way to log in.

    An existing role of that name loses its other privileges and keeps its password.

    Raises:
        StoreUnavailable: Postgres does not answer.
        psycopg.errors.InsufficientPrivilege: The DSN's login may not create roles.
    """
    role, schema = sql.Identifier(name), schemas_of(dsn).tables
    with (
        store_edge(f"make the role {name}"),
        psycopg.connect(own_dsn(dsn), connect_timeout=_ANALYST_CONNECT_TIMEOUT_S) as connection,
    ):
        connection.execute(statement("lock_migrations"))
        database = sql.Identifier(connection.info.dbname)
        known = connection.execute("select from pg_roles where rolname = %s", (name,))
        if known.fetchone() is None:
            connection.execute(sql.SQL("create role {} login nosuperuser").format(role))
        # Queries name tables without their schema.
        for setting, value in (*_SETTINGS.items(), ("search_path", schema)):
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
                    schema=sql.Identifier(schema),
                    tables=sql.SQL(", ").join(map(sql.Identifier, tables)),
                )
            )
    return tables
