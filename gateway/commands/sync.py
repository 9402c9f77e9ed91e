"""`headwater sync`: a local copy of the rows."""

import time
from pathlib import Path

import click

from headwater.gateway.commands.api import Api
from headwater.gateway.commands.mirror import Mirror, SyncFailed
from headwater.gateway.commands.options import (
    examples,
    json_option,
    settings_from,
    url_of,
    url_option,
)
from headwater.gateway.commands.output import print_rows, say


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
