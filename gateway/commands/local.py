"""What a user does on this machine: look at the settings, sign a delivery."""

import sys

import click

from headwater.gateway.commands.options import examples, json_option, settings_from
from headwater.gateway.commands.output import print_rows
from headwater.streams.clock import now_ms


@click.command(epilog=examples("headwater settings", "headwater settings --json"))
@json_option
def settings(as_json: bool) -> None:
    """Show every setting: its variable, value, default and meaning. Secrets stay hidden."""
    from headwater.gateway.settings import describe  # noqa: PLC0415 (loads more than --help needs)

    rows = [described._asdict() for described in describe(settings_from())]
    print_rows(rows, ("variable", "value", "default", "meaning"), as_json=as_json)


@click.command(
    "sign",
    epilog=examples(
        "headwater sign delivery.json",
        'curl -H "terra-signature: $(headwater sign delivery.json)" \\',
        "     --data-binary @delivery.json http://127.0.0.1:8080/webhooks/terra",
    ),
)
@click.argument("file", type=click.File("rb"))
@click.option("--secret", help="The signing secret. Default: the first of HEADWATER_TERRA_SECRETS.")
def sign(file: click.utils.LazyFile, secret: str | None) -> None:
    """Print the terra-signature of a file, as Terra would send it now.

    FILE is the body, byte for byte; - reads standard input. A signature holds for 5 minutes.
    """
    from headwater.gateway.local.demo_day import terra_signature  # noqa: PLC0415 (loads more than --help needs)

    key = secret or settings_from().secrets_of("terra")[0]
    sys.stdout.write(terra_signature(key, file.read(), now_ms() // 1000) + "\n")
