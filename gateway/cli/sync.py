"""`headwater sync`: a local copy of the rows."""

import shlex
import time
from pathlib import Path

import click

from headwater.gateway.cli.api import Api
from headwater.gateway.cli.mirror import Mirror, SyncFailed
from headwater.gateway.cli.options import examples, json_option, settings_from, url_option
from headwater.gateway.cli.output import print_rows, say
from headwater.gateway.settings.addresses import url_of
from headwater.schemas.tables import DAILY_SUMMARY


@click.command(
    epilog=examples(
        "headwater sync --db headwater.sqlite",
        "headwater sync --db headwater.sqlite --since 2026-07-01T00:00:00Z",
        "headwater sync --db sleep.sqlite --table sleep_sessions",
        'headwater sync --db mine.sqlite --token "$(headwater token user_amara)"',
    )
)
@click.option(
    "--db",
    "database",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The SQLite file; created if it does not exist.",
)
@click.option(
    "--since",
    metavar="RFC3339",
    help="For the first copy: only rows written at or after this time. Later copies continue.",
)
@click.option("--table", help="Only the rows of this table. Default: all tables.")
@click.option("--key", help="The readers' key. Default: HEADWATER_READ_KEY.")
@click.option("--token", help="A user's token, instead of the key: only this user's rows.")
@url_option
@json_option
def sync(  # noqa: PLR0913, PLR0917 (one parameter a flag; click names them)
    database: Path,
    since: str | None,
    table: str | None,
    key: str | None,
    token: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Copy the rows into a SQLite file: everything at first, then changes."""
    if key and token:
        raise click.UsageError("expected --key or --token, found both")
    settings = settings_from(read_key=key)
    bearer = f"Bearer {token or settings.read_key.get_secret_value()}"
    api = Api(url or url_of(settings), {"authorization": bearer})
    mirror = Mirror(database, api.client, report=say, sleep=time.sleep, table=table)
    try:
        written = mirror.sync(since)
    except SyncFailed as error:
        raise click.ClickException(str(error)) from error
    rows = [{"table": name, "rows": count} for name, count in written.items()]
    print_rows(rows, ("table", "rows"), as_json=as_json)
    if not as_json:
        query = shlex.quote(f"select * from {table or DAILY_SUMMARY.name} limit 5")  # noqa: S608 (shown)
        say(f"Query the copy: sqlite3 {shlex.quote(str(database))} {query}")
        say("Run the same command again to bring it up to date.")
