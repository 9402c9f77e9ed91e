"""Migrations: the files `migrations/NNNN_name.sql`, applied once each, in order.

All that are missing are applied in one transaction under an advisory lock, so two processes that
start together do not collide and a failure leaves the database as it was. An applied file is never
edited: add another one.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

import psycopg

from headwater.projections.errors import DatabaseTooNew, MigrationChanged, store_edge
from headwater.projections.postgres.making_tables import make_tables
from headwater.projections.postgres.statements import statement
from headwater.projections.postgres.step_role import open_to_steps, relations_of
from headwater.schemas.installed_tables import INSTALLED

__all__ = ["Migration", "catalogue", "migrate", "unapplied"]

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
    """The migrations of this release, oldest first."""
    folder = folder or files("headwater.projections").joinpath("migrations")
    found = [entry for entry in folder.iterdir() if entry.name.endswith(".sql")]
    migrations = [
        Migration(
            version=int(entry.name.split("_", 1)[0]),
            name=entry.name.removesuffix(".sql"),
            sql=entry.read_bytes(),
        )
        for entry in found
    ]
    return tuple(sorted(migrations, key=lambda migration: migration.version))


def migrate(
    dsn: str,
    report: Callable[[str], None],
    migrations: tuple[Migration, ...] | None = None,
) -> list[str]:
    """Brings a database up to this release; returns the names of the migrations applied now.

    Shape:  the tables of installed packages are made, too, unless `migrations` are given.
    Errors: MigrationChanged, DatabaseTooNew, TableUnfit, StoreUnavailable.
    """
    tables = INSTALLED if migrations is None else ()
    migrations = catalogue() if migrations is None else migrations
    with (
        store_edge("take the migrations"),
        psycopg.connect(dsn, connect_timeout=_CONNECT_TIMEOUT_S) as connection,
    ):
        connection.execute(statement("lock_migrations"))
        connection.execute(statement("create_schema_migrations"))
        applied = connection.execute(statement("applied_migrations")).fetchall()
        missing = _missing(dict(applied), migrations)
        for migration in missing:
            report(f"Postgres: applying migration {migration.name}")
            connection.execute(migration.sql)
            parameters = {"version": migration.version, "checksum": migration.checksum}
            connection.execute(statement("record_migration"), parameters)
    make_tables(dsn, report, tables)
    ours = [name for migration in migrations for name in relations_of(migration.sql)]
    with (
        store_edge("open tables to steps"),
        psycopg.connect(dsn, connect_timeout=_CONNECT_TIMEOUT_S) as connection,
    ):
        connection.execute(statement("lock_migrations"))
        open_to_steps(
            connection, ["schema_migrations", *ours, *(table.name for table in tables)], report
        )
    return [migration.name for migration in missing]


def unapplied(dsn: str) -> tuple[list[str], datetime]:
    """The migrations that a database lacks, and what time it is there.

    Errors: MigrationChanged, DatabaseTooNew, StoreUnavailable.
    """
    with (
        store_edge("look at the migrations"),
        psycopg.connect(dsn, connect_timeout=_CONNECT_TIMEOUT_S) as connection,
    ):
        made = connection.execute("select to_regclass('schema_migrations') is not null, now()")
        known, now = made.fetchone() or (False, None)
        applied = connection.execute(statement("applied_migrations")).fetchall() if known else []
    return [migration.name for migration in _missing(dict(applied), catalogue())], now


def _missing(applied: dict[int, str], migrations: tuple[Migration, ...]) -> list[Migration]:
    """The migrations that a database lacks, after making sure that those it has are ours."""
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
