"""`headwater deliveries`, `why` and `impact`: deliveries, and which values they set."""

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from headwater.gateway.cli.api import Api, admin_options, path_of
from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.operate import STAGES, trace_rows
from headwater.gateway.cli.options import examples, limit_option
from headwater.gateway.cli.results import Columns, Result, Table, fields, listing, prints

#: Rows are sorted by time, so a narrow terminal drops the time before the type.
LISTED: Final = Columns(
    (
        *("received_at", "id", "status", "source", "type", "user_id"),
        *("rows", "rejected", "request_id", "reason"),
    ),
    drops=("request_id", "rejected", "rows", "source", "received_at", "user_id", "type"),
    styles={"status": {"dead": "red", "refused": "red", "parked": "yellow"}},
)
#: Effects of a delivery, with the columns of their tables.
_EFFECT_COLUMNS: Final = {
    "workflows": ("at", "rule", "instance", "does"),
    "rows": ("table", "key", "columns"),
    "dead letters": ("position", "reason", "rule", "dead_at", "replayed_at", "message"),
    "copies": ("request_id", "at"),
}
_DROPPED: Final = Columns(("path", "reason", "count"))
_EFFECT_DROPS: Final = ("replayed_at", "dead_at", "rule", "at")
_STATUSES: Final = ("processed", "skipped", "parked", "dead", "refused")


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
              help="How many, at most; those retried longest ago come first.")  # fmt: skip
@click.option("--user", help="Only those of this user's connections.")
@admin_options
@prints
def drain(limit: int, user: str | None, api: Api) -> Result:
    """Retry deliveries that wait for their user, now.

    A delivery whose user is still unknown keeps waiting, and its waiting time is not reset.
    """
    body = {"limit": limit} | ({} if user is None else {"user_id": user})
    drained = api.post("/admin/drain", body)
    enqueued = drained["enqueued"]
    hint = f"Retried: {enqueued}." if enqueued else "No delivery waits."
    return Result(answer=drained, hints=[hint])


@deliveries.command(
    "list",
    epilog=examples(
        "headwater deliveries list --refused",
        "headwater deliveries list --type daily --user user_amara",
        "headwater deliveries list --reason no_connection_for_terra_user --json | jq .",
    ),
)
@click.option("--source", help="Only those of this source.")
@click.option("--type", "kind", help="Only those of this type, as the source names it.")
@click.option("--user", help="Only those of this user.")
@click.option("--status", type=click.Choice(_STATUSES), help="Only those with this status.")
@click.option("--refused", is_flag=True, help="The same as --status refused.")
@click.option("--reason", help="Only those with this reason, as it is printed.")
@click.option("--since", metavar="RFC3339", help="Only those received at or after this time.")
@click.option("--until", metavar="RFC3339", help="Only those received before this time.")
@limit_option(10_000)
@click.option("--after", metavar="CURSOR", help="Continue after an earlier page.")
@admin_options
@prints
def list_deliveries(
    *,
    kind: str | None,
    user: str | None,
    status: str | None,
    refused: bool,
    api: Api,
    **filters: Any,  # noqa: ANN401 (parameters of the route, by the same names)
) -> Result:
    """List deliveries and refused requests, newest first."""
    if refused and status not in (None, "refused"):
        raise click.UsageError(f"expected --refused or --status {status}, found both")
    status = "refused" if refused else status
    page = api.get("/admin/deliveries", **filters, type=kind, user_id=user, status=status)
    rows = [{**row, "id": row["event_id"] or row["request_id"]} for row in page["rows"]]
    none = "There are no such deliveries."
    return listing(page, LISTED.table(rows), none=none, more=page["cursor"], by="--after")


@deliveries.command(
    "show",
    epilog=examples(
        "headwater deliveries show 5f1d7a84b2c9e03f6a1b8d7c4e2f9a60",
        "headwater deliveries show 01JZ2Y0W8M3V9Q6T5R4E3W2Q1A --body | jq .",
        "headwater deliveries show webhooks/3@17",
    ),
)
@click.argument("delivery_id", metavar="ID")
@click.option("--body", is_flag=True, help="Print only the body, byte for byte as it was signed.")
@admin_options
@prints
def show_delivery(delivery_id: str, body: bool, api: Api) -> Result:
    """Show everything about a delivery: its traces, rows, workflows and dead letters.

    ID is its event id, the id of a request that delivered it (the gateway's request_id), or its
    position in the log, webhooks/PARTITION@OFFSET.
    """
    path = path_of("admin", "deliveries", delivery_id.removeprefix("webhooks/"))
    answer = api.get(path, body="true" if body else None)
    if body:
        return Result(answer=answer, text=_body(answer.get("body")))
    if answer.get("delivery") is None:
        return Result(answer=answer, tables=[fields(answer["refusal"].items(), "refused")])
    return Result(answer=answer, tables=list(_tables(answer["delivery"])))


def _body(body: str | None) -> bytes:
    if body is None:
        raise click.ClickException("the log no longer has the body of this delivery")
    return base64.b64decode(body)


def _tables(delivery: Mapping[str, Any]) -> Iterator[Table]:
    outcome = dict(delivery["outcome"])
    dropped = outcome.pop("rejected_fields", ())
    yield fields(outcome.items(), "delivery")
    if dropped:
        yield _DROPPED.table(dropped, "dropped values")
    traces = delivery["journeys"]
    for number, trace in enumerate(traces, 1):
        title = "trace" if len(traces) == 1 else f"trace {number} of {len(traces)}"
        yield STAGES.table(trace_rows(trace["hops"]), title)
    for name, rows in (
        ("workflows", map(_effect, delivery["effects"])),
        ("rows", map(_changed, delivery["rows"])),
        ("dead letters", map(_letter, delivery["dead_letters"])),
        ("copies", delivery["copies"]),
    ):
        if effects := list(rows):
            yield Columns(_EFFECT_COLUMNS[name], _EFFECT_DROPS).table(effects, name)


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
    return {**letter, "position": f"{letter['partition']}/{letter['offset']}"}


# -- `headwater why` and `headwater impact`

_WHY: Final = Columns(
    ("column", "value", "raw_event_id", "normalizer", "version", "sent_at", "position"),
    drops=("position", "version", "sent_at"),
)
_IMPACT: Final = Columns(
    ("table", "key", "columns_set", "columns_still_set"), drops=("columns_set",)
)


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
@prints
def why(table: str, key: tuple[str, ...], column: str | None, api: Api) -> Result:
    """Show where the values of a row come from: which delivery set each, and what it overrode.

    KEY is one argument for each column of the table's key, in their order.
    """
    path = path_of("admin", "why", table, *key)
    explained = api.get(path, column=column)
    more = "The user has more deliveries than were searched for overridden values."
    hints = [] if explained["complete"] else [more]
    return Result(answer=explained, tables=[_WHY.table(_lines(explained))], hints=hints)


def _lines(explained: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a line for each value, followed by those that it overrode."""
    lines = []
    for name, column in explained["columns"].items():
        lines.append({"column": name, **column})
        lines += [
            {**dict.fromkeys(_WHY.names, ""), **other, "column": "  overrode"}
            for other in column["overrode"]
        ]
    return lines


@click.command(
    epilog=examples("headwater impact 0d1e…", "headwater impact 0d1e… --json | jq .instances")
)
@click.argument("raw_event_id")
@admin_options
@prints
def impact(raw_event_id: str, api: Api) -> Result:
    """Show what a delivery set: rows, columns that still have its values, and workflows."""
    result = api.get(path_of("admin", "impact", raw_event_id))
    rows = [
        {
            "table": row["table"],
            "key": "/".join(row["key"].values()),
            "columns_set": ", ".join(row["columns_set"]),
            "columns_still_set": ", ".join(row["columns_still_set"]),
        }
        for row in result["rows"]
    ]
    hints = [f"started {instance['workflow']}/{instance['id']}" for instance in result["instances"]]
    return Result(answer=result, tables=[_IMPACT.table(rows)], hints=hints)
