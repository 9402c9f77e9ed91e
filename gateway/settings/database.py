"""The database of the settings, with the schema of the project."""

from typing import TYPE_CHECKING
from urllib.parse import quote

from headwater.gateway.settings.addresses import LOOPBACK, SettingsUnusable
from headwater.gateway.settings.patterns import DEFAULT_SCHEMA

if TYPE_CHECKING:
    from headwater.gateway.settings.settings import Settings


def dsn_of(settings: "Settings") -> str:
    """Return the address of Postgres with the schema: the configured one, else the embedded one's.

    Every part of Headwater that uses Postgres gets this address, so the schema is stated here only.
    """
    if settings.postgres_schema == DEFAULT_SCHEMA:
        return _server_of(settings)
    from headwater.projections.postgres.connections import in_schema  # noqa: PLC0415 (loads slowly)

    return in_schema(_server_of(settings), settings.postgres_schema)


def _server_of(settings: "Settings") -> str:
    if not settings.postgres and not settings.postgres_port:
        raise SettingsUnusable("HEADWATER_POSTGRES: expected a DSN, found nothing and a free port")
    if settings.postgres:
        return settings.postgres
    # As `projections.postgres.embedded` has it, which is slow to import.
    password = settings.data_dir.absolute() / "postgres" / "pgpass"
    return (
        f"postgresql://headwater@{LOOPBACK}:{settings.postgres_port}/headwater"
        f"?passfile={quote(str(password))}"
    )
