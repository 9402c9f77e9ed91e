"""`headwater user`: what is known of one user, and forgetting it."""

from typing import Any, Final

import click

from headwater.gateway.commands.api import Api, admin_options, path_of
from headwater.gateway.commands.following import followed
from headwater.gateway.commands.on_demand import Group
from headwater.gateway.commands.options import examples, json_option
from headwater.gateway.commands.output import print_json, print_rows, say

_CONNECTION: Final = ("terra_user_id", "provider", "active", "deactivated_at", "scopes")
_OUTCOME: Final = ("received_at", "event_id", "status", "source", "type", "rows", "reason")
_DROPS: Final = ("source", "rows", "scopes")
_STYLES: Final = {"status": {"dead": "red", "parked": "yellow"}}


@click.group(
    cls=Group,
    epilog=examples(
        "headwater user show user_amara",
        "headwater user show user_amara --json | jq .counts",
        "headwater user wipe user_amara",
    ),
)
def user() -> None:
    """Look at what is known of one user, or forget it."""


@user.command("show", epilog=examples("headwater user show user_amara"))
@click.argument("user_id", metavar="ID")
@admin_options
@json_option
def show_user(user_id: str, api: Api, as_json: bool) -> None:
    """Show a user's connections, how many rows there are, what came last, and what waits."""
    found: dict[str, Any] = api.get(path_of("admin", "user", user_id))
    if as_json:
        print_json(found)
        return
    counts = [{"table": name, "rows": number} for name, number in found["counts"].items()]
    print_rows(counts, ("table", "rows"), title="counts")
    for name, title, columns in (
        ("connections", "connections", _CONNECTION),
        ("last_outcomes", "last deliveries", _OUTCOME),
        ("waiting", "deliveries that wait", _OUTCOME),
    ):
        if found[name]:
            print_rows(found[name], columns, title=title, drops=_DROPS, styles=_STYLES)
    if not any(found["counts"].values()):
        say(f"Nothing is known of {user_id}.")


@user.command(
    "wipe",
    epilog=examples("headwater user wipe user_amara", "headwater user wipe user_amara --yes"),
)
@click.argument("user_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--detach", is_flag=True, help="Do not wait until it is done.")
@admin_options
@json_option
def wipe_user(user_id: str, yes: bool, detach: bool, api: Api, as_json: bool) -> None:
    """Forget a user: all that came of their deliveries so far, wherever it is.

    It cannot be undone. What is delivered from now on is new. Once it is ordered it is carried out,
    whoever dies meanwhile; ordering it again is safe, and says how much was left.
    """
    path = path_of("admin", "user", user_id)
    if not yes:
        counts = {name: n for name, n in api.get(path)["counts"].items() if n}
        there = ", ".join(f"{n} of {name}" for name, n in counts.items()) or "nothing"
        say(f"Of {user_id} there is: {there}.")
        click.confirm("Wipe all of it for good?", abort=True, err=True)
    wiped = api.post(f"{path}/wipe", {})
    blobs = wiped["deleted"]["blobs"]
    if not detach:
        wiped = followed(
            wiped,
            look=lambda: api.get(f"{path}/wipe{path_of(wiped['wipe_id'])}"),
            under_way=lambda now: not now["done"],
            how_far=None if as_json else _how_far,
        )
        wiped["deleted"]["blobs"] = blobs
    if as_json:
        print_json(wiped)
        return
    rows = [{"of": name, "deleted": number} for name, number in wiped["deleted"].items()]
    print_rows(rows, ("of", "deleted"))
    if not wiped["done"]:
        say("It is under way, and goes on by itself; what was found so far is counted.")


def _how_far(wiped: dict[str, Any]) -> str:
    """What a person is told while a wipe goes on, whether or not they stay."""
    return (
        f"{sum(wiped['deleted'].values())} records found; it goes on by itself, also after Ctrl-C"
    )
