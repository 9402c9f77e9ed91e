"""`headwater quality`: what came by week, what could not be used, and what is missing."""

from typing import Final

import click

from headwater.gateway.cli.api import Api, admin_options
from headwater.gateway.cli.options import examples
from headwater.gateway.cli.results import Columns, Result, prints

_WEEKS_MAX: Final = 53
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


@click.command(
    epilog=examples(
        "headwater quality",
        "headwater quality --weeks 13 --source terra",
        "headwater quality --json | jq '.rejected_values[] | select(.number > 100)'",
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
    or out of range; late days; days without data of active connections. Ranges are settings of a
    provider: after a change, `headwater replay` repairs what was dropped.
    """
    answer = api.get("/admin/quality", weeks=weeks, source=source)
    rows, values = answer["weeks"], answer["rejected_values"]
    tables = [_WEEK.table(rows)]
    if values:
        tables.append(_VALUES.table(values, "dropped values"))
    hints = [] if rows else ["No deliveries in these weeks."]
    return Result(answer=answer, tables=tables, hints=hints)
