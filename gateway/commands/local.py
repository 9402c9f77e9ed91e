"""What a user does: mirror the rows, sign a delivery, look at the settings."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from gateway.commands.api import Api
from gateway.commands.options import examples, json_option, settings_from, url_of, url_option
from gateway.demo_day import terra_signature
from gateway.mirror import Mirror, SyncFailed
from gateway.output import print_rows, say
from gateway.settings import describe


@click.command(
    epilog=examples(
        "headwater sync --db headwater.sqlite",
        "headwater sync --db headwater.sqlite --since 2026-07-01T00:00:00Z",
    )
)
@click.option(
    "--db",
    "database",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The SQLite file; made if it is not there.",
)
@click.option(
    "--since",
    metavar="RFC3339",
    help="Of a first copy: only rows written since then. Later ones go on where they were.",
)
@click.option("--key", help="The readers' key. Default: HEADWATER_READ_KEY.")
@url_option
@json_option
def sync(
    database: Path, since: str | None, key: str | None, url: str | None, as_json: bool
) -> None:
    """Copy the rows into a SQLite file: everything at first, then what changed."""
    settings = settings_from(read_key=key)
    bearer = f"Bearer {settings.read_key.get_secret_value()}"
    api = Api(url or url_of(settings), {"authorization": bearer})
    mirror = Mirror(database, api.client, report=say, sleep=time.sleep)
    try:
        written = mirror.sync(since)
    except SyncFailed as error:
        raise click.ClickException(str(error)) from error
    rows = [{"table": name, "rows": count} for name, count in written.items()]
    print_rows(rows, ("table", "rows"), as_json=as_json)


@click.command(epilog=examples("headwater settings", "headwater settings --json"))
@json_option
def settings(as_json: bool) -> None:
    """Show every setting: its variable, value, default and meaning. Secrets stay hidden."""
    rows = [described._asdict() for described in describe(settings_from())]
    print_rows(rows, ("variable", "value", "default", "meaning"), as_json=as_json)


def sign_command(clock: Callable[[], int]) -> click.Command:
    """`headwater sign`, which reads the given clock."""

    @click.command(
        "sign",
        epilog=examples(
            "headwater sign delivery.json",
            'curl -H "terra-signature: $(headwater sign delivery.json)" \\',
            "     --data-binary @delivery.json http://127.0.0.1:8080/webhooks/terra",
        ),
    )
    @click.argument("file", type=click.File("rb"))
    @click.option(
        "--secret", help="The signing secret. Default: the first of HEADWATER_TERRA_SECRETS."
    )
    def sign(file: click.utils.LazyFile, secret: str | None) -> None:
        """Print the terra-signature of a file, as Terra would send it now.

        FILE is the body, byte for byte; - reads standard input. A signature holds for 5 minutes.
        """
        key = secret or settings_from().terra_keys[0]
        sys.stdout.write(terra_signature(key, file.read(), clock() // 1000) + "\n")

    return sign
