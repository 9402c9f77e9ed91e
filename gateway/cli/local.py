"""`headwater settings`: shows the settings."""

import click

from headwater.gateway.cli.options import examples, json_option, settings_from
from headwater.gateway.cli.output import print_rows


@click.command(epilog=examples("headwater settings", "headwater settings --json"))
@json_option
def settings(as_json: bool) -> None:
    """Show every setting: its variable, value, default and meaning. Secrets stay hidden."""
    from headwater.gateway.settings.environment import describe  # noqa: PLC0415 (loads more than --help needs)

    rows = [setting._asdict() for setting in describe(settings_from())]
    print_rows(rows, ("variable", "value", "default", "meaning"), as_json=as_json)
