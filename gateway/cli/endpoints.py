"""`headwater endpoints`: where notifications are sent, and what became of them."""

import time
from datetime import datetime
from typing import Any, Final

import click
from typing_extensions import override

from headwater.gateway.cli.api import Api, admin_options, path_of
from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import (
    collect_pages,
    confirm,
    cursor_option,
    detach_option,
    examples,
    limit_option,
    yes_option,
)
from headwater.gateway.cli.orders import Operation, Order
from headwater.gateway.cli.results import Columns, Result, Table, fields, listing, prints
from headwater.gateway.client.texts import moment
from headwater.processors.notifications import NotificationType
from headwater.processors.runs.durations import milliseconds

_ENDPOINTS: Final = "/v1/endpoints"
_LISTED: Final = Columns(
    ("id", "url", "state", "types", "filters", "created", "why"),
    drops=("created", "filters"),
    styles={"state": {"disabled": "red"}},
)
_DELIVERIES: Final = Columns(
    ("delivery", "type", "state", "created", "next attempt", "error"),
    drops=("next attempt", "error"),
    styles={"state": {"failed": "red", "pending": "yellow"}},
)
_ATTEMPTS: Final = Columns(
    ("run", "attempt", "at", "outcome", "status", "ms", "detail", "response"),
    drops=("response", "ms"),
    styles={"outcome": {"failed": "red", "stopped": "yellow"}},
)
_LIMIT_MAX: Final = 1_000
_PAGE: Final = 100
#: A test has one attempt, of 15 s at most.
_TESTED_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.5

#: Types that an endpoint can have.
_TYPES: Final = [type_.value for type_ in NotificationType if type_ is not NotificationType.TEST]

_endpoint: Final = click.argument("endpoint_id", metavar="ID")


def _span_ms(_context: click.Context, _option: click.Parameter, text: str) -> int:
    try:
        return milliseconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.group(
    cls=Group,
    epilog=examples(
        "headwater endpoints create https://example.com/hooks --type instance_errored",
        "headwater endpoints list",
        "headwater endpoints test ep_3f9a2c7d41e05b6a8c1d",
        "headwater endpoints deliveries ep_3f9a2c7d41e05b6a8c1d --state failed",
        "headwater endpoints replay ep_3f9a2c7d41e05b6a8c1d --since 2026-07-01T00:00:00Z",
    ),
)
def endpoints() -> None:
    """Send notifications to URLs: signed webhooks about instances, dead letters and rows."""


@endpoints.command(
    epilog=examples(
        "headwater endpoints create https://example.com/hooks --type instance_errored "
        "--type dead_letter",
        "headwater endpoints create https://example.com/hooks --type instance_completed "
        "--workflow order",
        "headwater endpoints create https://example.com/hooks --type row_changed "
        "--table daily_summary",
    )
)
@click.argument("endpoint_url", metavar="URL")
@click.option(
    "--type",
    "types",
    type=click.Choice(_TYPES),
    metavar="TYPE",
    multiple=True,
    required=True,
    help=f"What it receives; repeatable. One of {', '.join(_TYPES)}.",
)
@click.option("--workflow", "workflows", multiple=True, help="Only of this workflow; repeatable.")
@click.option("--table", "tables", multiple=True, help="Only rows of this table; repeatable.")
@click.option(
    "--reason", "reasons", multiple=True, help="Only dead letters of this reason; repeatable."
)
@click.option("--description", default="", help="For people.")
@admin_options
@prints
def create(  # noqa: PLR0913, PLR0917 (the options of the command)
    endpoint_url: str,
    types: tuple[str, ...],
    workflows: tuple[str, ...],
    tables: tuple[str, ...],
    reasons: tuple[str, ...],
    description: str,
    api: Api,
) -> Result:
    """Create an endpoint, and print its secret. It cannot be printed again."""
    body = {
        "url": endpoint_url,
        "description": description,
        "types": types,
        "workflows": workflows,
        "tables": tables,
        "reasons": reasons,
    }
    return _shown(api.post(_ENDPOINTS, body))


@endpoints.command(
    "list", epilog=examples("headwater endpoints list", "headwater endpoints list --json")
)
@admin_options
@prints
def list_endpoints(api: Api) -> Result:
    """List endpoints, newest first."""
    listed = api.get(_ENDPOINTS)["endpoints"]
    none = "There are no endpoints: `headwater endpoints create URL --type …` creates one."
    return listing(listed, _LISTED.table(map(_row, listed)), none=none)


@endpoints.command(epilog=examples("headwater endpoints show ep_3f9a2c7d41e05b6a8c1d"))
@_endpoint
@admin_options
@prints
def show(endpoint_id: str, api: Api) -> Result:
    """Show an endpoint."""
    endpoint = api.get(_path(endpoint_id))
    return Result(answer=endpoint, tables=[_fields_of(endpoint)])


@endpoints.command(
    epilog=examples(
        "headwater endpoints rotate ep_3f9a2c7d41e05b6a8c1d",
        "headwater endpoints rotate ep_3f9a2c7d41e05b6a8c1d --overlap 0s    it has leaked",
    )
)
@_endpoint
@click.option(
    "--overlap",
    "overlap_ms",
    metavar="SPAN",
    default="24h",
    show_default=True,
    callback=_span_ms,
    help="How long notifications are also signed with the previous secret.",
)
@admin_options
@prints
def rotate(endpoint_id: str, overlap_ms: int, api: Api) -> Result:
    """Give an endpoint a new secret, and print it."""
    body = {"overlapSeconds": overlap_ms // 1000}
    return _shown(api.post(_path(endpoint_id, "rotate"), body))


@endpoints.command(
    epilog=examples("headwater endpoints disable ep_3f9a2c7d41e05b6a8c1d --why maintenance")
)
@_endpoint
@click.option("--why", default="", help="For people.")
@admin_options
@prints
def disable(endpoint_id: str, why: str, api: Api) -> Result:
    """Send nothing to an endpoint until it is enabled."""
    endpoint = api.post(_path(endpoint_id, "disable"), {"why": why})
    return Result(answer=endpoint, tables=[_LISTED.table([_row(endpoint)])])


@endpoints.command(epilog=examples("headwater endpoints enable ep_3f9a2c7d41e05b6a8c1d"))
@_endpoint
@admin_options
@prints
def enable(endpoint_id: str, api: Api) -> Result:
    """Send an endpoint what happens from now on."""
    endpoint = api.post(_path(endpoint_id, "enable"), {})
    hint = "`headwater endpoints replay ID --since TIME` sends what it has missed."
    return Result(answer=endpoint, tables=[_LISTED.table([_row(endpoint)])], hints=[hint])


@endpoints.command(
    epilog=examples(
        "headwater endpoints delete ep_3f9a2c7d41e05b6a8c1d",
        "headwater endpoints delete ep_3f9a2c7d41e05b6a8c1d --yes",
    )
)
@_endpoint
@yes_option
@admin_options
@prints
def delete(endpoint_id: str, yes: bool, api: Api) -> Result:
    """Delete an endpoint, and its secret."""
    endpoint = api.get(_path(endpoint_id))
    confirm(f"{endpoint_id} ({endpoint['url']}) will be deleted.", "Delete it?", yes=yes)
    deleted = api.delete(_path(endpoint_id))
    return Result(answer=deleted, hints=[f"{endpoint_id} is deleted."])


@endpoints.command(epilog=examples("headwater endpoints test ep_3f9a2c7d41e05b6a8c1d"))
@_endpoint
@admin_options
@prints
def test(endpoint_id: str, api: Api) -> Result:
    """Send an endpoint a notification of the type test, and print its response.

    There is one attempt, also if the endpoint is disabled. The exit code is 1 if it failed.
    """
    started = api.post(_path(endpoint_id, "test"), {})
    path = _path(endpoint_id, "deliveries", started["id"])
    until = time.monotonic() + _TESTED_WITHIN_S
    while (state := api.find(path)) is None or state["state"] == "pending":
        if time.monotonic() > until:
            hint = f"The test is not over; `headwater endpoints deliveries {endpoint_id}` shows it."
            return Result(answer=started, hints=[hint], failed=True)
        time.sleep(_POLL_S)
    return _delivery(state)


@endpoints.command(
    epilog=examples(
        "headwater endpoints deliveries ep_3f9a2c7d41e05b6a8c1d",
        "headwater endpoints deliveries ep_3f9a2c7d41e05b6a8c1d --state failed",
        "headwater endpoints deliveries ep_3f9a2c7d41e05b6a8c1d DELIVERY    its attempts",
    )
)
@_endpoint
@click.argument("delivery_id", metavar="[DELIVERY]", required=False)
@click.option(
    "--state",
    type=click.Choice(["pending", "delivered", "failed", "canceled"]),
    help="Only deliveries of this state.",
)
@limit_option(_LIMIT_MAX)
@cursor_option
@admin_options
@prints
def deliveries(
    endpoint_id: str,
    delivery_id: str | None,
    state: str | None,
    limit: int,
    cursor: str | None,
    api: Api,
) -> Result:
    """List deliveries to an endpoint, newest first, or the attempts of one."""
    path = _path(endpoint_id, "deliveries")
    if delivery_id is not None:
        return _delivery(api.get(path + path_of(delivery_id)), fails=False)

    def page(size: int, after: str | None) -> tuple[list[dict[str, Any]], str | None]:
        answer = api.get(path, state=state, limit=size, cursor=after)
        return answer["deliveries"], answer["cursor"]

    listed, more = collect_pages(page, limit=limit, page_size=_PAGE, cursor=cursor)
    table = _DELIVERIES.table(map(_delivery_row, listed))
    return listing(listed, table, none="There are no deliveries.", more=more)


class _Replay(Order):
    name, nouns, done = "replay", ("notification", "notifications"), "sent"

    @override
    def progress(self, state: Operation) -> str:
        return f"{state['sent']} sent, {state['restarted']} started again"


@endpoints.command(
    epilog=examples(
        "headwater endpoints replay ep_3f9a2c7d41e05b6a8c1d DELIVERY",
        "headwater endpoints replay ep_3f9a2c7d41e05b6a8c1d --since 2026-07-01T00:00:00Z",
        "headwater endpoints replay ep_3f9a2c7d41e05b6a8c1d --since 2026-07-01T00:00:00Z "
        "--delivered",
    )
)
@_endpoint
@click.argument("delivery_id", metavar="[DELIVERY]", required=False)
@click.option("--since", metavar="TIME", help="What happened from then on; RFC 3339.")
@click.option("--until", metavar="TIME", help="What happened before; RFC 3339.")
@click.option("--delivered", is_flag=True, help="Also what it has accepted.")
@detach_option
@admin_options
@prints
def replay(  # noqa: PLR0913, PLR0917 (the options of the command)
    endpoint_id: str,
    delivery_id: str | None,
    since: str | None,
    until: str | None,
    delivered: bool,
    detach: bool,
    api: Api,
) -> Result:
    """Send a notification again, or what an endpoint has not accepted since a time.

    The notifications have the same ids as before.
    """
    if (delivery_id is None) is (since is None):
        received = "neither" if since is None else "both"
        raise click.UsageError(f"expected DELIVERY or --since, found {received}")
    if delivery_id is not None:
        started = api.post(_path(endpoint_id, "deliveries", delivery_id, "replay"), {})
        return Result(answer=started, hints=[f"{delivery_id} was started again."])
    body = {"since": since, "until": until, "delivered": delivered}
    order = _Replay(api, body, _path(endpoint_id, "replays"))
    return order.finish(order.begin(dry_run=False), detach=detach)


def _path(endpoint_id: str, *more: str) -> str:
    return path_of("v1", "endpoints", endpoint_id, *more)


def _shown(endpoint: dict[str, Any]) -> Result:
    hints = [f"{endpoint['id']}: {endpoint['url']} receives {', '.join(endpoint['types'])}"]
    if endpoint["previousUntil"] is not None:
        until = _at(endpoint["previousUntil"])
        hints.append(f"Notifications are also signed with the previous secret until {until}.")
    return Result(answer=endpoint, text=f"{endpoint['secret']}\n", hints=hints)


def _fields_of(endpoint: dict[str, Any]) -> Table:
    row = _row(endpoint)
    names = ("id", "url", "description", "state", "why", "types", "filters", "created")
    values = {**row, "description": endpoint["description"]}
    return fields((name, values[name]) for name in names)


def _row(endpoint: dict[str, Any]) -> dict[str, Any]:
    filters = (*endpoint["workflows"], *endpoint["tables"], *endpoint["reasons"])
    return {
        "id": endpoint["id"],
        "url": endpoint["url"],
        "state": endpoint["state"],
        "types": ", ".join(endpoint["types"]),
        "filters": ", ".join(filters),
        "created": _at(endpoint["createdAt"]),
        "why": endpoint["why"],
    }


def _delivery_row(delivery: dict[str, Any]) -> dict[str, Any]:
    waits = delivery["state"] == "pending"
    return {
        "delivery": delivery["id"],
        "type": delivery["type"],
        "state": delivery["state"],
        "created": _at(delivery["createdAt"]),
        "next attempt": _at(delivery["nextAttemptAt"]) if waits else "",
        "error": delivery["error"],
    }


def _delivery(delivery: dict[str, Any], *, fails: bool = True) -> Result:
    attempts = [
        {**attempt, "attempt": attempt["number"], "at": _at(attempt["at"])}
        for attempt in delivery["attempts"]
    ]
    return Result(
        answer=delivery,
        tables=[_DELIVERIES.table([_delivery_row(delivery)]), _ATTEMPTS.table(attempts)],
        failed=fails and delivery["state"] != "delivered",
    )


def _at(time_: str | None) -> str:
    return "" if time_ is None else moment(datetime.fromisoformat(time_))
