"""Flags that several commands share, and how they become settings.

Settings are imported where they are read: they take longer to load than the commands that explain
themselves, or that take everything from their flags.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

import click

from headwater.gateway.commands.output import say
from headwater.schemas.failures import DEPLOYMENT_NOT_FOUND, NO_ACTIVE_DEPLOYMENT

if TYPE_CHECKING:
    from headwater.gateway.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

#: The addresses of the embedded parts, unless others are given.
LOOPBACK: Final = "127.0.0.1"
#: Where the gateway is, for all commands that ask one.
URL_VARIABLE: Final = "HEADWATER_URL"
#: Where a gateway has its workflow service.
WORKFLOWS_PATH: Final = "/api/workflows"
#: What to do next about a refusal that has to do with deployments.
OF_DEPLOYMENTS: Final[Mapping[str, str]] = {
    NO_ACTIVE_DEPLOYMENT: "`headwater deployments activate` activates one",
    DEPLOYMENT_NOT_FOUND: "`headwater deployments list` shows those that exist",
}


class SettingsWrong(click.ClickException):
    """Settings that cannot be used; one line each."""

    exit_code = 2


def settings_from(**flags: object) -> "Settings":
    """The settings, flags first, then the environment; says what looks like one and is not.

    Errors: SettingsWrong.
    """
    from headwater.gateway.environment import (  # noqa: PLC0415 (see above)
        SettingsInvalid,
        load_settings,
        unknown_variables,
    )

    try:
        settings = load_settings(**flags)
    except SettingsInvalid as error:
        raise SettingsWrong("\n".join(error.problems)) from error
    for line in unknown_variables(settings, os.environ):
        say(f"headwater: {line}")
    return settings


def dsn_of(settings: "Settings") -> str:
    """Postgres' address: the one given, else that of the embedded one on this machine."""
    if not settings.postgres and not settings.postgres_port:
        raise SettingsWrong("HEADWATER_POSTGRES: expected a DSN, found nothing and a free port")
    if settings.postgres:
        return settings.postgres
    # Where `projections.postgres.embedded`, which takes long to load, keeps it.
    password = settings.data_dir.absolute() / "postgres" / "pgpass"
    return (
        f"postgresql://headwater@{LOOPBACK}:{settings.postgres_port}/headwater"
        f"?passfile={quote(str(password))}"
    )


def url_of(settings: "Settings") -> str:
    """Where the gateway of these settings is asked from this machine."""
    host = settings.host if settings.host not in ("0.0.0.0", "::") else LOOPBACK  # noqa: S104 (compared)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def several(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Options as one decorator; help lists them in this order."""

    def with_all(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return with_all


def _gateway_of(url: str) -> str:
    return url.rstrip("/").removesuffix(WORKFLOWS_PATH)


kafka_option: Final = click.option(
    "--kafka",
    metavar="HOST:PORT,…",
    help="Kafka brokers. Default: HEADWATER_KAFKA, else the embedded one on this machine.",
)

topic_options: Final = several(
    click.option(
        "--partitions", type=int, help="Partitions of each. Default: HEADWATER_PARTITIONS."
    ),
    click.option("--replication", type=int, help="Copies of each. Default: HEADWATER_REPLICATION."),
)

postgres_option: Final = click.option(
    "--postgres",
    metavar="DSN",
    help="Postgres. Default: HEADWATER_POSTGRES, else the embedded one on this machine.",
)

#: `--app`, once for each.
app_option: Final = click.option(
    "--app",
    metavar="MODULE[:NAME]",
    multiple=True,
    callback=lambda _context, _option, apps: ",".join(apps) or None,
    help="Workflows to run: a module, or a workflow or list of workflows in it; more than once "
    "for several apps side by side. Default: HEADWATER_APP.",
)

listen_options: Final = several(
    click.option("--host", help="Address to listen on. Default: HEADWATER_HOST, else 127.0.0.1."),
    click.option(
        "--port", type=int, help="Port of the gateway. Default: HEADWATER_PORT, else 8080."
    ),
)

data_dir_option: Final = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of all data. Default: HEADWATER_DATA_DIR, else .headwater.",
)

#: `--url`; the URL of the gateway's workflow service is one of the gateway, too.
url_option: Final = click.option(
    "--url",
    metavar="URL",
    envvar=URL_VARIABLE,
    callback=lambda _context, _option, url: url and _gateway_of(url),
    help="Where the gateway is. Default: HEADWATER_URL, else that of HEADWATER_HOST and "
    "HEADWATER_PORT.",
)

#: `api.admin_options` makes of them the gateway that they name.
admin_flags: Final = several(
    url_option,
    click.option("--admin-key", help="The operators' key. Default: HEADWATER_ADMIN_KEY."),
)

json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON, whole.")


def examples(*lines: str) -> str:
    """An epilog of examples that click leaves as it is."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
