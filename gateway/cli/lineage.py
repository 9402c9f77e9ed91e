"""`headwater why` and `headwater impact`: where values come from, and what a delivery set."""

from typing import Any

import click

from headwater.gateway.cli.api import Api, admin_options, path_of
from headwater.gateway.cli.options import examples, json_option
from headwater.gateway.cli.output import print_json, print_rows, say

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
    """Show where the values of a row come from: which delivery set each, and what it overrode.

    KEY is one argument for each column of the table's key, in their order.
    """
    path = path_of("admin", "why", table, *key)
    explained = api.get(path, column=column)
    if as_json:
        print_json(explained)
        return
    print_rows(
        list(_lines(explained)), _WHY, as_json=False, drops=("position", "version", "sent_at")
    )
    if not explained["complete"]:
        say("The user has more deliveries than were searched for overridden values.")


def _lines(explained: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a line for each value, followed by those that it overrode."""
    lines = []
    for name, column in explained["columns"].items():
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
    """Show what a delivery set: rows, columns that still have its values, and workflows."""
    result = api.get(path_of("admin", "impact", raw_event_id))
    if as_json:
        print_json(result)
        return
    rows = [
        {
            "table": row["table"],
            "key": "/".join(row["key"].values()),
            "columns_set": ", ".join(row["columns_set"]),
            "columns_still_set": ", ".join(row["columns_still_set"]),
        }
        for row in result["rows"]
    ]
    print_rows(rows, _IMPACT, drops=("columns_set",))
    for instance in result["instances"]:
        say(f"started {instance['workflow']}/{instance['id']}")
