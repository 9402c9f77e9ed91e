"""`headwater terra-stand-in`: a server that imitates Terra's API, for machines without Terra."""

import os
import sqlite3
from pathlib import Path

import click
import msgspec
import uvloop

from headwater.gateway.api.listening import listen
from headwater.gateway.api.server import serve
from headwater.gateway.cli.options import examples, settings_from
from headwater.gateway.cli.output import say
from headwater.gateway.local.terra_stand_in.app import CONTROL, create_stand_in
from headwater.gateway.local.terra_stand_in.people import StandIn
from headwater.gateway.local.terra_stand_in.posting import InjectedError
from headwater.gateway.settings.addresses import url_of
from headwater.gateway.settings.privacy import close_environment
from headwater.gateway.settings.process import log_to_stderr
from headwater.gateway.settings.settings import Settings
from headwater.gateway.settings.sources import sources_with_secrets
from headwater.streams.clock import now_ms

#: Only loopback: a client that reaches the stand-in can read uploaded files.
_HOST = "127.0.0.1"
_WIDGET_PATH = "/auth/generateWidgetSession"


@click.command(
    "terra-stand-in",
    epilog=examples(
        "headwater terra-stand-in",
        "headwater terra-stand-in --port 8091 --file terra.sqlite --seed 7",
        'headwater terra-stand-in --fault \'{"kind": "status", "status": 429}\'',
        'headwater terra-stand-in --fault \'{"kind": "stall", "path": "/v2/daily", "times": 3}\'',
        'headwater terra-stand-in --fault \'{"kind": "die", "after": 10}\'',
    ),
)
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    default=8091,
    show_default=True,
    help="Port on loopback.",
)
@click.option("--target", help="Where deliveries are posted. Default: this machine's gateway.")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of its state, to resume from after a crash. Default: state is not kept.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of all made-up data.")
@click.option(
    "--lab-shape",
    type=click.Choice(["typed", "untyped"]),
    default="typed",
    show_default=True,
    help="Shape of lab reports: today's, or the one without type and user.",
)
@click.option(
    "--without-data", is_flag=True, help="Answer requests for data as usual, but post none."
)
@click.option(
    "--fault", "faults", multiple=True, metavar="JSON", help="A failure to begin with; repeatable."
)
def terra_stand_in(  # noqa: PLR0913, PLR0917 (one parameter a flag; click names them)
    port: int,
    target: str | None,
    file: Path | None,
    seed: int,
    lab_shape: str,
    without_data: bool,
    faults: tuple[str, ...],
) -> None:
    """Imitate Terra: connect people who do not exist, and post signed, made-up data.

    It is no part of Terra and has no real data. Configure Headwater with HEADWATER_TERRA_API=
    http://127.0.0.1:8091/v2 and any developer id and key; `headwater up` does that unless
    HEADWATER_TERRA_DEV_ID is set. POST /stand-in/faults makes it fail, GET /stand-in shows its
    state.
    """
    settings = settings_from()
    close_environment()
    os.umask(0o077)
    log_to_stderr(settings, "terra-stand-in")
    setup = StandIn(
        target=target or f"{url_of(settings)}/webhooks/terra",
        secret=_secret(settings),
        url=f"http://{_HOST}:{port}",
        file=file,
        seed=seed,
        data=not without_data,
        widget_path=_widget_path(settings.terra_widget_path),
        lab_field=settings.terra_lab_field,
        lab_shape=lab_shape,
    )
    try:
        app = create_stand_in(setup, now_ms, map(_fault, faults))
    except sqlite3.Error as error:
        raise click.UsageError(
            f"--file: expected a file of a stand-in, found another: {error}"
        ) from error
    listening = listen(_HOST, port)
    say(
        f"This is a stand-in for Terra: it serves {setup.url}/v2 with people who do not exist, and "
        f"posts to {setup.target}. {setup.url}{CONTROL} shows its state. Ctrl-C stops it."
    )
    uvloop.run(serve(app, listening, end_streams=lambda: None))


def _secret(settings: Settings) -> str:
    """Return the secret that Terra signs with, as the sources configure it."""
    for source in sources_with_secrets(settings, os.environ):
        if source.name == "terra" and source.secrets:
            return source.secrets[0]
    return settings.secrets_of("terra")[0]


def _fault(text: str) -> InjectedError:
    try:
        return msgspec.json.decode(text, type=InjectedError)
    except msgspec.DecodeError as error:
        raise click.UsageError(
            f"--fault: expected a fault as JSON, found {text!r}: {error}"
        ) from error


def _widget_path(setting: str) -> str:
    """Return the path of widget sessions; one on another host is not the stand-in's."""
    return setting if setting.startswith("/") else _WIDGET_PATH
