"""`headwater deliveries`: which deliveries there were, and all that is known of one."""

import base64
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from headwater.gateway.commands.api import Api, admin_options, path_of
from headwater.gateway.commands.on_demand import Group
from headwater.gateway.commands.operate import journey_rows
from headwater.gateway.commands.options import examples, json_option
from headwater.gateway.commands.output import print_fields, print_json, print_rows, say
from headwater.gateway.commands.paging import limit_option, say_rest

COLUMNS: Final = (
    "received_at",
    "id",
    "status",
    "source",
    "type",
    "user_id",
    "rows",
    "rejected",
    "request_id",
    "reason",
)
#: What a narrow terminal does without, the first one first. The newest are on top anyway, so the
#: time goes before the type.
DROPS: Final = ("request_id", "rejected", "rows", "source", "received_at", "user_id", "type")
#: What a delivery came to, and the columns of each.
_PARTS: Final = {
    "workflows": ("at", "rule", "instance", "does"),
    "rows": ("table", "key", "columns"),
    "dead letters": ("place", "reason", "rule", "dead_at", "replayed_at", "message"),
    "copies": ("request_id", "at"),
}
_PART_DROPS: Final = ("replayed_at", "dead_at", "rule", "at")
_STATUSES: Final = ("processed", "skipped", "parked", "dead", "refused")
_STYLES: Final = {"status": {"dead": "red", "refused": "red", "parked": "yellow"}}


@click.group(
    cls=Group,
    epilog=examples(
        "headwater deliveries list",
        "headwater deliveries list --status dead --since 2026-07-01T00:00:00Z",
        "headwater deliveries show 5f1d7a84b2c9e03f6a1b8d7c4e2f9a60",
        "headwater deliveries drain --user user_amara",
    ),
)
def deliveries() -> None:
    """Look at deliveries: what became of them, and why."""


@deliveries.command(
    "drain",
    epilog=examples(
        "headwater deliveries drain",
        "headwater deliveries drain --user user_amara --limit 1000",
    ),
)
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True,
              help="How many, at most; those looked at longest ago come first.")  # fmt: skip
@click.option("--user", help="Only those of this user's connections.")
@admin_options
@json_option
def drain(limit: int, user: str | None, api: Api, as_json: bool) -> None:
    """Look again, now, at deliveries that wait for their user.

    What still has nobody to belong to goes on waiting, from when its wait began.
    """
    asked = {"limit": limit} | ({} if user is None else {"user_id": user})
    drained = api.post("/admin/drain", asked)
    if as_json:
        print_json(drained)
    elif drained["enqueued"]:
        say(f"Looked at again: {drained['enqueued']}.")
    else:
        say("No delivery waits.")


@deliveries.command(
    "list",
    epilog=examples(
        "headwater deliveries list --refused",
        "headwater deliveries list --type daily --user user_amara",
        "headwater deliveries list --reason no_connection_for_terra_user --json | jq .",
    ),
)
@click.option("--source", help="Only those of this source.")
@click.option("--type", "kind", help="Only those of this type, as the producer calls it.")
@click.option("--user", help="Only those of this user.")
@click.option("--status", type=click.Choice(_STATUSES), help="Only those that came to this.")
@click.option("--refused", is_flag=True, help="The same as --status refused.")
@click.option("--reason", help="Only those of this reason, as it is printed.")
@click.option("--since", metavar="RFC3339", help="Only those received since then.")
@click.option("--until", metavar="RFC3339", help="Only those received before then.")
@limit_option(10_000)
@click.option("--after", metavar="CURSOR", help="Go on after the cursor of an earlier page.")
@admin_options
@json_option
def list_deliveries(
    *,
    kind: str | None,
    user: str | None,
    status: str | None,
    refused: bool,
    api: Api,
    as_json: bool,
    **asked: Any,  # noqa: ANN401 (what the route takes by the same names)
) -> None:
    """List deliveries and requests that were refused, the newest first."""
    if refused and status not in (None, "refused"):
        raise click.UsageError(f"expected --refused or --status {status}, found both")
    wanted = "refused" if refused else status
    page = api.get("/admin/deliveries", **asked, type=kind, user_id=user, status=wanted)
    if as_json:
        print_json(page)
        return
    rows = [{**row, "id": row["event_id"] or row["request_id"]} for row in page["rows"]]
    print_rows(rows, COLUMNS, drops=DROPS, styles=_STYLES)
    say_rest(rows, page["cursor"], none="There are no such deliveries.", by="--after")


@deliveries.command(
    "show",
    epilog=examples(
        "headwater deliveries show 5f1d7a84b2c9e03f6a1b8d7c4e2f9a60",
        "headwater deliveries show 01JZ2Y0W8M3V9Q6T5R4E3W2Q1A --body | jq .",
        "headwater deliveries show webhooks/3@17",
    ),
)
@click.argument("named", metavar="ID")
@click.option("--body", is_flag=True, help="Print the body alone, byte for byte as it was signed.")
@admin_options
@json_option
def show_delivery(named: str, body: bool, api: Api, as_json: bool) -> None:
    """Show all that is known of a delivery: its journeys, rows, workflows and dead letters.

    ID is its event id, the id of a request that brought it (the gateway's request_id), or its place
    in the log, webhooks/PARTITION@OFFSET.
    """
    path = path_of("admin", "deliveries", named.removeprefix("webhooks/"))
    found = api.get(path, body="true" if body else None)
    if as_json:
        print_json(found)
    elif body:
        _write_body(found.get("body"))
    elif found.get("delivery") is None:
        print_fields(found["refusal"].items(), title="refused")
    else:
        _show(found["delivery"])


def _write_body(body: str | None) -> None:
    if body is None:
        raise click.ClickException("the log does not have the body of this delivery any more")
    sys.stdout.buffer.write(base64.b64decode(body))


def _show(delivery: Mapping[str, Any]) -> None:
    print_fields(delivery["outcome"].items(), title="delivery")
    journeys = delivery["journeys"]
    for number, journey in enumerate(journeys, 1):
        title = "journey" if len(journeys) == 1 else f"journey {number} of {len(journeys)}"
        columns = ("at", "after_ms", "stage", "position", "detail")
        print_rows(journey_rows(journey["hops"]), columns, title=title, drops=("after_ms",))
    for name, rows in (
        ("workflows", map(_effect, delivery["effects"])),
        ("rows", map(_changed, delivery["rows"])),
        ("dead letters", map(_letter, delivery["dead_letters"])),
        ("copies", delivery["copies"]),
    ):
        if found := list(rows):
            print_rows(found, _PARTS[name], title=name, drops=_PART_DROPS)


def _effect(effect: Mapping[str, Any]) -> dict[str, Any]:
    event = effect["event_type"]
    return {
        "rule": effect["name"],
        "instance": f"{effect['workflow']}/{effect['instance_id']}",
        "does": "starts it" if event is None else f"sends {event}",
        "at": effect["at"],
    }


def _changed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "table": row["table"],
        "key": "/".join(row["key"].values()),
        "columns": ", ".join(row["columns"]),
    }


def _letter(letter: Mapping[str, Any]) -> dict[str, Any]:
    return {**letter, "place": f"{letter['partition']}/{letter['offset']}"}
