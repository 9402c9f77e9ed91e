"""`headwater replay`: deliveries are processed once more, after a look at how many they are."""

from typing import Any, Final
from urllib.parse import quote

import click

from headwater.gateway.commands.following import begun, followed
from headwater.gateway.commands.operate import admin_api
from headwater.gateway.commands.options import admin_options, examples, json_option
from headwater.gateway.commands.output import counted, print_json, say

_FAILED: Final = 1


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
@click.option("--dry-run", is_flag=True, help="Count them, and do nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--detach", is_flag=True, help="Do not wait until it is done.")
@click.option("--follow", metavar="ID", help="Begin nothing: follow a replay to its end.")
@admin_options
@json_option
def replay(
    *,
    yes: bool,
    detach: bool,
    follow: str | None,
    url: str | None,
    admin_key: str | None,
    as_json: bool,
    **asked: Any,  # noqa: ANN401 (what the route takes)
) -> None:
    """Have deliveries processed once more: all that is given has to fit.

    Rows do not change, unless a normalizer has become able to take what was dead. A replay goes on
    by itself if this command, or a worker, ends.
    """
    order = _order(asked)
    if follow is not None and order:
        raise click.UsageError(f"expected --follow alone, found {', '.join(order)} beside it")
    api = admin_api(url, admin_key)
    if follow is None:
        dry_run = order.pop("dry_run", False)
        found = begun(
            api,
            "/admin/replays",
            order,
            dry_run=dry_run,
            yes=yes or as_json,
            will_be=lambda found: f"{_many(found['matched'])} will be replayed.",
        )
    else:
        found = api.get(f"/admin/replays/{quote(follow, safe='')}")
    if not detach:
        path = f"/admin/replays/{found['id']}"
        found = followed(
            found,
            look=lambda: api.get(path),
            under_way=lambda now: now["state"] == "running",
            how_far=None if as_json else _far,
        )
    if as_json:
        print_json(found)
    elif found["state"] == "dry_run":
        say(f"{_many(found['matched'])} would be replayed.")
    else:
        say(f"replay {found['id']} {found['state']}: {_far(found)}")
    if found["state"] == "failed":
        raise click.exceptions.Exit(_FAILED)


def _order(asked: dict[str, Any]) -> dict[str, Any]:
    named = {"type_": "type", "from_": "from"}
    order = {named.get(name, name): value for name, value in asked.items()}
    # An offset and a partition may be 0, which equals False.
    return {
        name: value
        for name, value in order.items()
        if value is not None and value is not False and value != ()
    }


def _far(found: dict[str, Any]) -> str:
    gone = f", {found['gone']} of which the log has no bytes" if found["gone"] else ""
    return f"{found['replayed']} of {_many(found['matched'])}{gone}"


def _many(number: int) -> str:
    return counted(number, "delivery", "deliveries")
