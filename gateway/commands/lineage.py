"""`headwater why` and `headwater impact`: where values come from, and what a delivery has set."""

from typing import Any

import click

from headwater.gateway.commands.api import Api, admin_options, path_of
from headwater.gateway.commands.options import examples, json_option
from headwater.gateway.commands.output import print_json, print_rows, say

_WHY = ("column", "value", "raw_event_id", "normalizer", "version", "sent_at", "position")
_IMPACT = ("table", "key", "columns_set", "columns_still_set")


@click.command(
    epilog=examples(
        "headwater why daily_summary user_amara garmin 2026-07-01",
        "headwater why daily_summary user_amara garmin 2026-07-01 --column steps",
        "headwater why terra_connections 4af9… --json | jq .columns",
    )
)
@click.argument("table")
@click.argument("key", nargs=-1, required=True)
@click.option("--column", help="The only column to explain.")
@admin_options
@json_option
def why(
    table: str,
    key: tuple[str, ...],
    column: str | None,
    api: Api,
    as_json: bool,
) -> None:
    """Say where the values of a row come from: which delivery set each, and what it overrode.

    KEY is one argument for each column of the table's key, in their order.
    """
    path = path_of("admin", "why", table, *key)
    found = api.get(path, column=column)
    if as_json:
        print_json(found)
        return
    print_rows(list(_lines(found)), _WHY, as_json=False, drops=("position", "version", "sent_at"))
    if not found["complete"]:
        say("The user has more deliveries than were looked at for what was overridden.")


def _lines(found: dict[str, Any]) -> list[dict[str, Any]]:
    """A line for each value, and below it those that it overrode."""
    lines = []
    for name, column in found["columns"].items():
        lines.append({"column": name, **column})
        lines += [
            {**dict.fromkeys(_WHY, ""), **other, "column": "  overrode"}
            for other in column["overrode"]
        ]
    return lines


@click.command(
    epilog=examples("headwater impact 0d1e…", "headwater impact 0d1e… --json | jq .instances")
)
@click.argument("raw_event_id")
@admin_options
@json_option
def impact(raw_event_id: str, api: Api, as_json: bool) -> None:
    """Say what a delivery has set: rows, columns that still have its values, and workflows."""
    found = api.get(path_of("admin", "impact", raw_event_id))
    if as_json:
        print_json(found)
        return
    rows = [
        {
            "table": row["table"],
            "key": "/".join(row["key"].values()),
            "columns_set": ", ".join(row["columns_set"]),
            "columns_still_set": ", ".join(row["columns_still_set"]),
        }
        for row in found["rows"]
    ]
    print_rows(rows, _IMPACT, drops=("columns_set",))
    for each in found["instances"]:
        say(f"started {each['workflow']}/{each['id']}")
