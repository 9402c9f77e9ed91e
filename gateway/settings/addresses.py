"""Addresses of Postgres and of the gateway, as the settings state them."""

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import click

if TYPE_CHECKING:
    from headwater.gateway.settings.settings import Settings

#: Address of embedded servers, unless others are configured.
LOOPBACK: Final = "127.0.0.1"


class SettingsUnusable(click.ClickException):
    """Settings cannot be used; the message has a line per problem."""

    exit_code = 2


def dsn_of(settings: "Settings") -> str:
    """Return the address of Postgres: the configured one, else the embedded one's."""
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


def url_of(settings: "Settings") -> str:
    """Return the URL at which this machine reaches the gateway of these settings."""
    host = settings.host if settings.host not in ("0.0.0.0", "::") else LOOPBACK  # noqa: S104 (compared)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def public_url_of(settings: "Settings") -> str:
    """Return the URL at which others reach the gateway: the configured one, else its address."""
    return settings.public_url or url_of(settings)
