"""`headwater user`: show or wipe everything about one user."""

from typing import Any, Final

import click

from headwater.gateway.cli.api import Api, admin_options, path_of
from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.operations import followed
from headwater.gateway.cli.options import confirm, detach_option, examples, yes_option
from headwater.gateway.cli.output import print_json, print_rows, say
from headwater.gateway.cli.results import Columns, Result, json_option, prints

_CONNECTIONS: Final = Columns(
    ("terra_user_id", "provider", "active", "deactivated_at", "scopes"), drops=("scopes",)
)
_OUTCOMES: Final = Columns(
    ("received_at", "event_id", "status", "source", "type", "rows", "reason"),
    drops=("source", "rows"),
    styles={"status": {"dead": "red", "parked": "yellow"}},
)


@click.group(
    cls=Group,
    epilog=examples(
        "headwater user show user_amara",
        "headwater user show user_amara --json | jq .counts",
        "headwater user wipe user_amara",
    ),
)
def user() -> None:
    """Show or wipe everything about one user."""


@user.command("show", epilog=examples("headwater user show user_amara"))
@click.argument("user_id", metavar="ID")
@admin_options
@prints
def show_user(user_id: str, api: Api) -> Result:
    """Show a user's connections, number of rows, last deliveries, and waiting deliveries."""
    stored: dict[str, Any] = api.get(path_of("admin", "user", user_id))
    counts = [{"table": name, "rows": number} for name, number in stored["counts"].items()]
    tables = [Columns(("table", "rows")).table(counts, "counts")]
    for name, title, columns in (
        ("connections", "connections", _CONNECTIONS),
        ("last_outcomes", "last deliveries", _OUTCOMES),
        ("waiting", "waiting deliveries", _OUTCOMES),
    ):
        if stored[name]:
            tables.append(columns.table(stored[name], title))
    hints = [] if any(stored["counts"].values()) else [f"There is no data of {user_id}."]
    return Result(answer=stored, tables=tables, hints=hints)


@user.command(
    "wipe",
    epilog=examples("headwater user wipe user_amara", "headwater user wipe user_amara --yes"),
)
@click.argument("user_id", metavar="ID")
@yes_option
@detach_option
@admin_options
@json_option
def wipe_user(user_id: str, yes: bool, detach: bool, api: Api, as_json: bool) -> None:
    """Delete everything that came from a user's deliveries so far.

    It cannot be undone. Later deliveries are stored again. A wipe that was accepted is completed,
    even if processes crash meanwhile; repeating it is safe, and shows how much was left.
    """
    path = path_of("admin", "user", user_id)
    if not yes:
        counts = {name: n for name, n in api.get(path)["counts"].items() if n}
        summary = ", ".join(f"{n} of {name}" for name, n in counts.items()) or "nothing"
        confirm(f"{user_id} has: {summary}.", "Delete all of it permanently?")
    wiped = api.post(f"{path}/wipe", {})
    blobs = wiped["deleted"]["blobs"]
    if not detach:
        wiped = followed(
            wiped,
            poll=lambda current: api.get(f"{path}/wipe{path_of(current['wipe_id'])}"),
            is_running=lambda current: not current["done"],
            progress=None if as_json else _progress,
        )
        wiped["deleted"]["blobs"] = blobs
    if as_json:
        print_json(wiped)
        return
    rows = [{"of": name, "deleted": number} for name, number in wiped["deleted"].items()]
    print_rows(rows, ("of", "deleted"))
    if not wiped["done"]:
        say("The wipe is running, and continues by itself; the counts are those so far.")


def _progress(wiped: dict[str, Any]) -> str:
    records = sum(wiped["deleted"].values())
    return f"{records} records deleted so far; it continues by itself, also after Ctrl-C"
