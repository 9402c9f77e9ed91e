"""Flags that several commands share, and how they become settings.

Settings are imported where they are read: they take longer to load than the commands that explain
themselves, or that take everything from their flags.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from headwater.gateway.commands.output import say

if TYPE_CHECKING:
    from headwater.gateway.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

#: The addresses of the embedded parts, unless others are given.
LOOPBACK: Final = "127.0.0.1"
#: Where the gateway is, for all commands that ask one.
URL_VARIABLE: Final = "HEADWATER_URL"
#: Where a gateway has its workflow service.
WORKFLOWS_PATH: Final = "/api/workflows"


class SettingsWrong(click.ClickException):
    """Settings that cannot be used; one line each."""

    exit_code = 2


def settings_from(**flags: object) -> "Settings":
    """The settings, flags first, then the environment; says what looks like one and is not.

    Errors: SettingsWrong.
    """
    from headwater.gateway.settings import (  # noqa: PLC0415 (see above)
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
    return settings.postgres or (
        f"postgresql://headwater@{LOOPBACK}:{settings.postgres_port}/headwater"
    )


def url_of(settings: "Settings") -> str:
    """Where the gateway of these settings is asked from this machine."""
    host = settings.host if settings.host not in ("0.0.0.0", "::") else LOOPBACK  # noqa: S104 (compared)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def kafka_option(command: F) -> F:
    """`--kafka`."""
    return click.option(
        "--kafka",
        metavar="HOST:PORT,…",
        help="Kafka brokers. Default: HEADWATER_KAFKA, else the embedded one on this machine.",
    )(command)


def topic_options(command: F) -> F:
    """`--partitions` and `--replication`."""
    command = click.option(
        "--replication", type=int, help="Copies of each. Default: HEADWATER_REPLICATION."
    )(command)
    return click.option(
        "--partitions", type=int, help="Partitions of each. Default: HEADWATER_PARTITIONS."
    )(command)


def postgres_option(command: F) -> F:
    """`--postgres`."""
    return click.option(
        "--postgres",
        metavar="DSN",
        help="Postgres. Default: HEADWATER_POSTGRES, else the embedded one on this machine.",
    )(command)


def app_option(command: F) -> F:
    """`--app`, once for each."""
    return click.option(
        "--app",
        metavar="MODULE[:NAME]",
        multiple=True,
        callback=lambda _context, _option, apps: ",".join(apps) or None,
        help="Workflows to run: a module, or a workflow or list of workflows in it; more than once "
        "for several apps side by side. Default: HEADWATER_APP.",
    )(command)


def listen_options(command: F) -> F:
    """`--host` and `--port`."""
    command = click.option(
        "--port", type=int, help="Port of the gateway. Default: HEADWATER_PORT, else 8080."
    )(command)
    return click.option(
        "--host", help="Address to listen on. Default: HEADWATER_HOST, else 127.0.0.1."
    )(command)


def data_dir_option(command: F) -> F:
    """`--data-dir`."""
    return click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder of all data. Default: HEADWATER_DATA_DIR, else .headwater.",
    )(command)


def url_option(command: F) -> F:
    """`--url`; the URL of the gateway's workflow service is one of the gateway, too."""
    return click.option(
        "--url",
        metavar="URL",
        envvar=URL_VARIABLE,
        callback=lambda _context, _option, url: url and _gateway_of(url),
        help="Where the gateway is. Default: HEADWATER_URL, else that of HEADWATER_HOST and "
        "HEADWATER_PORT.",
    )(command)


def _gateway_of(url: str) -> str:
    return url.rstrip("/").removesuffix(WORKFLOWS_PATH)


def admin_options(command: F) -> F:
    """`--url` and `--admin-key`."""
    command = click.option("--admin-key", help="The operators' key. Default: HEADWATER_ADMIN_KEY.")(
        command
    )
    return url_option(command)


def json_option(command: F) -> F:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, whole.")(command)


def examples(*lines: str) -> str:
    """An epilog of examples that click leaves as it is."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
