"""`headwater replay`: process deliveries again, after showing how many they are."""

from typing import Any

import click

from headwater.gateway.cli.following import (
    Operation,
    OperationOptions,
    begin_options,
    carry_out,
)
from headwater.gateway.cli.options import examples
from headwater.gateway.cli.output import counted


@click.command(
    epilog=examples(
        "headwater replay --user user_amara --dry-run",
        "headwater replay --type sleep --since 2026-07-01T00:00:00Z --rate 200",
        "headwater replay --partition 3 --from 1000 --to 2000 --yes",
        "headwater replay 0d1e… 77ab…      by id",
        "headwater replay                  all deliveries",
        "headwater replay --follow 01J…    follow one that was begun before",
    )
)
@click.argument("ids", nargs=-1)
@click.option("--source", help="Only from this source.")
@click.option("--type", "type_", help="Only of this type.")
@click.option("--user", "user_id", help="Only of this user.")
@click.option("--since", metavar="TIME", help="Received at or after; RFC 3339.")
@click.option("--until", metavar="TIME", help="Received before; RFC 3339.")
@click.option("--partition", type=click.IntRange(0), help="Only this partition of webhooks.")
@click.option("--from", "from_", type=click.IntRange(0), help="With --partition: first offset.")
@click.option("--to", type=click.IntRange(0), help="With --partition: last offset.")
@click.option("--rate", type=click.IntRange(1), help="Limit of deliveries a second.")
@begin_options("replay")
def replay(*, options: OperationOptions, **filters: Any) -> None:  # noqa: ANN401 (fields of the route)
    """Process deliveries again: those that match all options.

    Rows do not change, unless a normalizer now accepts deliveries that were dead. A replay
    continues if this command or a worker ends.
    """
    names = {"type_": "type", "from_": "from"}
    fields = {names.get(name, name): value for name, value in filters.items()}
    request = {name: value for name, value in fields.items() if value is not None and value != ()}
    carry_out("replay", request, options, done="replayed", count=_counted, progress=_progress)


def _progress(operation: Operation) -> str:
    lost = f", {operation['gone']} no longer in the log" if operation["gone"] else ""
    return f"{operation['replayed']} of {_counted(operation['matched'])}{lost}"


def _counted(number: int) -> str:
    return counted(number, "delivery", "deliveries")
