"""`headwater quality`: what came by week, what was not usable or stored, and what is missing."""

from typing import Final

import click

from headwater.gateway.cli.api import Api, admin_options
from headwater.gateway.cli.options import examples
from headwater.gateway.cli.results import Columns, Result, prints

_WEEKS_MAX: Final = 53
#: The gateway reads deliveries by three statements, for a minute each at most.
_WAITS_S: Final = 180.0
_WEEK: Final = Columns(
    (
        *("week", "source", "provider", "deliveries", "processed", "skipped", "parked", "dead"),
        *("duplicates", "rows", "rejected_records", "rejected_values", "late_days", "missing_days"),
    ),
    drops=("skipped", "processed", "duplicates", "parked", "rejected_records", "source", "rows"),
)
_VALUES: Final = Columns(
    ("week", "source", "provider", "field", "reason", "number"), drops=("source", "week")
)
_SKIPPED: Final = Columns(
    ("week", "source", "provider", "type", "reason", "number"), drops=("source", "week")
)
_CONNECTIONS: Final = Columns(("provider", "state", "connections"))
_NOT_RECEIVING: Final = Columns(
    ("user_id", "provider", "state", "silent_days", "last_day", "last_delivery_at"),
    styles={"state": {"silent": "yellow", "failing": "red"}},
)


@click.command(
    epilog=examples(
        "headwater quality",
        "headwater quality --weeks 13 --source terra",
        "headwater quality --json | jq '.rejected_values[] | select(.number > 100)'",
        "headwater quality --json | jq -r '.not_receiving[].user_id'",
    )
)
@click.option(
    "--weeks",
    type=click.IntRange(1, _WEEKS_MAX),
    default=4,
    show_default=True,
    help="How many weeks, this one included.",
)
@click.option("--source", help="Only of this source.")
@admin_options
@prints
def quality(weeks: int, source: str | None, api: Api) -> Result:
    """Show the quality of the data by week, source and provider.

    Deliveries by outcome, duplicates, rows; values that were dropped because they were not measured
    or out of range; deliveries of types that are not stored; late days; days without data of active
    connections. Then active connections, and those that receive no data: `silent` without data for
    some days, `failing` if Terra has reported an error since. Ranges and days are settings of a
    provider: after a change of ranges, `headwater replay` repairs what was dropped.
    """
    answer = api.get("/admin/quality", _WAITS_S, weeks=weeks, source=source)
    rows = answer["weeks"]
    tables = [_WEEK.table(rows)]
    for columns, name, title in (
        (_VALUES, "rejected_values", "dropped values"),
        (_SKIPPED, "skipped", "skipped deliveries"),
        (_CONNECTIONS, "connections", "active connections"),
        (_NOT_RECEIVING, "not_receiving", "connections without new data"),
    ):
        if answer[name]:
            tables.append(columns.table(answer[name], title))
    hints = [] if rows else ["No deliveries in these weeks."]
    if answer["connections_counted_at"] is None:
        hints.append("Connections are being counted; repeat the command in a minute.")
    return Result(answer=answer, tables=tables, hints=hints)
