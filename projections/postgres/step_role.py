"""The role and the login for the SQL of steps.

The role `headwater_steps` reads, writes and creates tables in the authors' schema. Of Headwater's
own objects it can use only the function that writes the commit row of a step. Each database has its
own login in that role. `headwater migrate` creates both, with a random password that is stored in
`headwater.step_login` for workers.
"""

import secrets
from collections.abc import Callable
from typing import Final

import psycopg
from psycopg import errors

from headwater.projections.postgres.statements import statement

STEP_ROLE: Final = "headwater_steps"
_PASSWORD_BYTES: Final = 32
#: Bytes of a name in Postgres, which truncates longer ones.
_NAME_MAX: Final = 63


def open_to_steps(connection: psycopg.Connection, report: Callable[[str], None]) -> None:
    """Create or update the role and the login, in the current transaction.

    Args:
        connection: As the migrating login.
        report: Called with instructions for a database administrator if roles cannot be created.
    """
    try:
        with connection.transaction():
            connection.execute(statement("make_step_role"))
            connection.execute(statement("open_to_steps"))
    except errors.InsufficientPrivilege as error:
        report(
            f"Postgres: {connection.info.user} may not make the role {STEP_ROLE}, which the SQL of "
            f"steps runs as ({error.diag.message_primary}). Until a superuser has run `create role "
            f"{STEP_ROLE} nologin` and `headwater migrate` has run again, no worker with "
            "HEADWATER_POSTGRES runs workflows"
        )
        return
    try:
        with connection.transaction():
            _keep_login(connection)
            connection.execute(statement("make_step_login"))
    except errors.InsufficientPrivilege as error:
        connection.execute("delete from step_login")
        report(
            f"Postgres: {connection.info.user} may not make a login for the SQL of steps "
            f"({error.diag.message_primary}). Have a superuser run `create role "
            f"{login_of(connection)} login in role {STEP_ROLE}`, give it a password, and give "
            "workers its DSN as HEADWATER_STEPS_POSTGRES"
        )


def login_of(connection: psycopg.Connection) -> str:
    """Return the name of the login of steps in the database of a connection."""
    name = f"{STEP_ROLE}_{connection.info.dbname}"
    if len(name.encode()) <= _NAME_MAX:
        return name
    cursor = connection.execute("select oid from pg_database where datname = current_database()")
    return f"{STEP_ROLE}_{(cursor.fetchone() or ('',))[0]}"


def _keep_login(connection: psycopg.Connection) -> None:
    """Store a random password, unless there is one."""
    name, password = login_of(connection), secrets.token_urlsafe(_PASSWORD_BYTES)
    # Only the verifier appears in statements that the server may log.
    verifier = connection.pgconn.encrypt_password(
        password.encode(), name.encode(), b"scram-sha-256"
    )
    parameters = {"name": name, "password": password, "verifier": verifier.decode()}
    connection.execute(statement("keep_step_login"), parameters)
