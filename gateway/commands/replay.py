"""`headwater replay`: deliveries are processed once more, after a look at how many they are."""

from typing import Any

import click

from headwater.gateway.commands.following import Answer, How, begin_options, carry_out
from headwater.gateway.commands.options import examples
from headwater.gateway.commands.output import counted


@click.command(
    epilog=examples(
        "headwater replay --user user_amara --dry-run",
        "headwater replay --type sleep --since 2026-07-01T00:00:00Z --rate 200",
        "headwater replay --partition 3 --from 1000 --to 2000 --yes",
        "headwater replay 0d1e… 77ab…      by id",
        "headwater replay                  all that there are",
        "headwater replay --follow 01J…    how far one is that was begun before",
    )
)
@click.argument("ids", nargs=-1)
@click.option("--source", help="Of a source.")
@click.option("--type", "type_", help="Of a type.")
@click.option("--user", "user_id", help="Of a user.")
@click.option("--since", metavar="TIME", help="Received then or later; RFC 3339.")
@click.option("--until", metavar="TIME", help="Received before; RFC 3339.")
@click.option("--partition", type=click.IntRange(0), help="Of a partition of webhooks.")
@click.option("--from", "from_", type=click.IntRange(0), help="With --partition: first offset.")
@click.option("--to", type=click.IntRange(0), help="With --partition: last offset.")
@click.option("--rate", type=click.IntRange(1), help="Deliveries a second, at most.")
@begin_options("replay")
def replay(*, how: How, **asked: Any) -> None:  # noqa: ANN401 (what the route takes)
    """Have deliveries processed once more: all that is given has to fit.

    Rows do not change, unless a normalizer has become able to take what was dead. A replay goes on
    by itself if this command, or a worker, ends.
    """
    named = {"type_": "type", "from_": "from"}
    given = {named.get(name, name): value for name, value in asked.items()}
    order = {name: value for name, value in given.items() if value is not None and value != ()}
    carry_out("replay", order, how, done="replayed", count=_many, far=_far)


def _far(found: Answer) -> str:
    gone = f", {found['gone']} of which the log has no bytes" if found["gone"] else ""
    return f"{found['replayed']} of {_many(found['matched'])}{gone}"


def _many(number: int) -> str:
    return counted(number, "delivery", "deliveries")
