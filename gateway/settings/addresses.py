"""The address of the gateway, as the settings state it."""

from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from headwater.gateway.settings.settings import Settings

#: Address of embedded servers, unless others are configured.
LOOPBACK: Final = "127.0.0.1"


class SettingsUnusable(click.ClickException):
    """Settings cannot be used; the message has a line per problem."""

    exit_code = 2


def url_of(settings: "Settings") -> str:
    """Return the URL at which this machine reaches the gateway of these settings."""
    host = settings.host if settings.host not in ("0.0.0.0", "::") else LOOPBACK  # noqa: S104 (compared)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def public_url_of(settings: "Settings") -> str:
    """Return the URL at which others reach the gateway: the configured one, else its address."""
    return settings.public_url or url_of(settings)
