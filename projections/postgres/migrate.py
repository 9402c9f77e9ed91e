"""Migrations: the files `migrations/NNNN_name.sql`, each applied once, in order.

All missing ones are applied in one transaction under an advisory lock, so concurrent starts do not
conflict, and a failure leaves the database unchanged. An applied file is never edited: add another
one.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

import psycopg
from psycopg import sql

from headwater.projections.errors import DatabaseTooNew, MigrationChanged, store_edge
from headwater.projections.postgres.connections import own_dsn, schemas_of
from headwater.projections.postgres.roles import open_to_steps
from headwater.projections.postgres.statements import statement
from headwater.projections.postgres.table_ddl import make_tables, refuse_foreign
from headwater.schemas.installed_tables import INSTALLED

_CONNECT_TIMEOUT_S: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """A migration file: its number, its name and its SQL."""

    version: int
    name: str
    sql: bytes

    @property
    def checksum(self) -> str:
        """SHA-256 of the file, in hex."""
        return hashlib.sha256(self.sql).hexdigest()


def catalogue(folder: Traversable | None = None) -> tuple[Migration, ...]:
    """Return the migrations of this release, oldest first."""
    folder = folder or files("headwater.projections").joinpath("migrations")
    entries = [entry for entry in folder.iterdir() if entry.name.endswith(".sql")]
    migrations = [
        Migration(
            version=int(entry.name.split("_", 1)[0]),
            name=entry.name.removesuffix(".sql"),
            sql=entry.read_bytes(),
        )
        for entry in entries
    ]
    return tuple(sorted(migrations, key=lambda migration: migration.version))


def migrate(
    dsn: str,
    report: Callable[[str], None],
    migrations: tuple[Migration, ...] | None = None,
) -> list[str]:
    """Bring a database up to this release; return the names of the applied migrations.

    Without `migrations`, the tables of installed packages are created, too.

    Raises:
        MigrationChanged: An applied migration was changed.
        DatabaseTooNew: A newer release has migrated the database.
        SchemaTaken: Another program has tables in the schema.
        TableUnfit: A table does not fit its declaration.
        StoreUnavailable: Postgres does not answer.
    """
    tables = INSTALLED if migrations is None else ()
    migrations = catalogue() if migrations is None else migrations
    schemas = schemas_of(dsn)
    with (
        store_edge("apply the migrations"),
        psycopg.connect(own_dsn(dsn), connect_timeout=_CONNECT_TIMEOUT_S) as connection,
    ):
        connection.execute(statement("lock_migrations"))
        refuse_foreign(connection, schemas.tables)
        connection.execute(schemas.named_in(statement("create_schemas")))
        connection.execute(statement("create_schema_migrations"))
        applied = connection.execute(statement("applied_migrations")).fetchall()
        missing = _missing(dict(applied), migrations)
        for migration in missing:
            report(f"Postgres: applying migration {migration.name}")
            connection.execute(schemas.named_in(migration.sql))
            parameters = {"version": migration.version, "checksum": migration.checksum}
            connection.execute(statement("record_migration"), parameters)
    make_tables(dsn, report, tables)
    with (
        store_edge("grant privileges to roles"),
        psycopg.connect(own_dsn(dsn), connect_timeout=_CONNECT_TIMEOUT_S) as connection,
    ):
        connection.execute(statement("lock_migrations"))
        open_to_steps(connection, schemas, report)
        connection.execute(schemas.named_in(statement("grant_roles")))
    _show_tables(dsn)
    return [migration.name for migration in missing]


def _show_tables(dsn: str) -> None:
    """Add Headwater's schema to the end of this login's search path in this database.

    So its sessions can name Headwater's tables without a schema, and nothing else changes for them.
    Headwater's own sessions have their own search path.
    """
    schema = schemas_of(dsn).tables
    with (
        store_edge("set the search path of a login"),
        psycopg.connect(dsn, connect_timeout=_CONNECT_TIMEOUT_S) as connection,
    ):
        setting = connection.execute("select current_setting('search_path')").fetchone()
        schemas = [name.strip() for name in setting[0].split(",")] if setting else []
        if connection.info.user == schema:
            # Otherwise it would create objects among Headwater's tables.
            schemas = [name for name in schemas if name != '"$user"']
        if schema not in schemas:
            connection.execute(
                sql.SQL("alter role current_user in database {} set search_path = {}").format(
                    sql.Identifier(connection.info.dbname),
                    sql.SQL(", ").join(sql.Literal(name.strip('"')) for name in (*schemas, schema)),
                )
            )


def unapplied(dsn: str) -> tuple[list[str], datetime]:
    """Return the migrations that a database lacks, and its current time.

    Raises:
        MigrationChanged: An applied migration was changed.
        DatabaseTooNew: A newer release has migrated the database.
        StoreUnavailable: Postgres does not answer.
    """
    with (
        store_edge("read the migrations"),
        psycopg.connect(own_dsn(dsn), connect_timeout=_CONNECT_TIMEOUT_S) as connection,
    ):
        cursor = connection.execute("select to_regclass('schema_migrations') is not null, now()")
        known, now = cursor.fetchone() or (False, None)
        applied = connection.execute(statement("applied_migrations")).fetchall() if known else []
    return [migration.name for migration in _missing(dict(applied), catalogue())], now


def _missing(applied: dict[int, str], migrations: tuple[Migration, ...]) -> list[Migration]:
    """Return the migrations that a database lacks, after checking those that it has."""
    known = {migration.version: migration for migration in migrations}
    for version, checksum in sorted(applied.items()):
        migration = known.get(version)
        if migration is None:
            raise DatabaseTooNew(
                f"expected a database of migration {max(known, default=0)} or older, found "
                f"migration {version}; usual cause: a newer release has run here. Run that "
                "release, or give this one a database of its own"
            )
        if migration.checksum != checksum:
            raise MigrationChanged(
                f"expected {migration.name}.sql as it was applied (SHA-256 {checksum[:12]}…), "
                f"found {migration.checksum[:12]}…; usual cause: an edit, or another version of a "
                "release that is not out yet. Undo it and put the change into a new migration"
            )
    return [migration for migration in migrations if migration.version not in applied]
