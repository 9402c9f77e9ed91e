"""Options that several commands share, and the settings they make.

Settings are imported where they are used: importing them is slower than printing help.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from headwater.gateway.cli.output import say
from headwater.gateway.settings.addresses import SettingsUnusable
from headwater.schemas.failures import DEPLOYMENT_NOT_FOUND, NO_ACTIVE_DEPLOYMENT

if TYPE_CHECKING:
    from headwater.gateway.settings.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

#: URL of the gateway, for all commands that send requests.
URL_VARIABLE: Final = "HEADWATER_URL"
#: Path of a gateway's workflow service.
WORKFLOWS_PATH: Final = "/api/workflows"
#: The next step after an error that concerns deployments, by its code.
DEPLOYMENT_HINTS: Final[Mapping[str, str]] = {
    NO_ACTIVE_DEPLOYMENT: "`headwater deployments activate` activates one",
    DEPLOYMENT_NOT_FOUND: "`headwater deployments list` shows those that exist",
}


def settings_from(**flags: object) -> "Settings":
    """Return the settings, flags before the environment; warns of unknown variables.

    Raises:
        SettingsUnusable: A setting is invalid.
    """
    from headwater.gateway.settings.environment import (  # noqa: PLC0415 (see above)
        SettingsInvalid,
        load_settings,
        unknown_variables,
    )

    try:
        settings = load_settings(**flags)
    except SettingsInvalid as error:
        raise SettingsUnusable("\n".join(error.problems)) from error
    for line in unknown_variables(settings, os.environ):
        say(f"headwater: {line}")
    return settings


def combined(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Combine options into one decorator; help lists them in this order."""

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

topic_options: Final = combined(
    click.option(
        "--partitions", type=int, help="Partitions of a topic. Default: HEADWATER_PARTITIONS."
    ),
    click.option(
        "--replication", type=int, help="Replicas of a topic. Default: HEADWATER_REPLICATION."
    ),
)

postgres_option: Final = click.option(
    "--postgres",
    metavar="DSN",
    help="Postgres. Default: HEADWATER_POSTGRES, else the embedded one on this machine.",
)

app_option: Final = click.option(
    "--app",
    metavar="MODULE[:NAME]",
    multiple=True,
    callback=lambda _context, _option, apps: ",".join(apps) or None,
    help="Workflows to run: a module, or a workflow or list of workflows in it; repeatable. "
    "Default: HEADWATER_APP.",
)

listen_options: Final = combined(
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

#: `--url`; a URL of the gateway's workflow service is accepted, too.
url_option: Final = click.option(
    "--url",
    metavar="URL",
    envvar=URL_VARIABLE,
    callback=lambda _context, _option, url: url and _gateway_of(url),
    help="URL of the gateway. Default: HEADWATER_URL, else that of HEADWATER_HOST and "
    "HEADWATER_PORT.",
)

#: `api.admin_options` passes commands the gateway that they name.
admin_flags: Final = combined(
    url_option,
    click.option("--admin-key", help="The operators' key. Default: HEADWATER_ADMIN_KEY."),
)

json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def examples(*lines: str) -> str:
    """Return an epilog of examples that click does not wrap."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
