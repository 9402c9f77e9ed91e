"""`headwater user`: everything about one user, and operations for one user."""

from collections.abc import Sequence
from typing import Any, Final

import click
from typing_extensions import override

from headwater.gateway.cli.api import Api, admin_options, path_of
from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import confirm, examples, yes_option
from headwater.gateway.cli.orders import Operation, Order, order_command
from headwater.gateway.cli.output import counted
from headwater.gateway.cli.results import Columns, Result, Table, prints

_CONNECTIONS: Final = Columns(
    ("terra_user_id", "provider", "active", "deactivated_at", "scopes"), drops=("scopes",)
)
_ACTIVITY: Final = Columns(
    ("provider", "state", "silent_days", "last_day", "last_delivery_at", "terra_user_id"),
    drops=("terra_user_id",),
    styles={"state": {"silent": "yellow", "failing": "red"}},
)
_SOURCES: Final = Columns(("source", "table", "rows", "last"))
_REQUESTS: Final = Columns(
    (
        *("provider", "type", "answer", "deliveries", "rows", "days_with_data", "missing_days"),
        "last_delivery_at",
    ),
    drops=("rows", "last_delivery_at"),
    styles={"answer": {"failed": "red", "refused": "yellow", "pending": "yellow"}},
)
_OUTCOMES: Final = Columns(
    ("received_at", "event_id", "status", "source", "type", "rows", "reason"),
    drops=("source", "rows"),
    styles={"status": {"dead": "red", "parked": "yellow"}},
)


_DELETED: Final = Columns(("of", "deleted"))


@click.group(
    cls=Group,
    epilog=examples(
        "headwater user show user_amara",
        "headwater user show user_amara --json | jq .counts",
        "headwater user import user_amara --days 365",
        "headwater user imports user_amara",
        "headwater user disconnect user_amara",
        "headwater user wipe user_amara",
    ),
)
def user() -> None:
    """Show, import, reconcile, disconnect or wipe one user, or list the imports."""


@user.command("show", epilog=examples("headwater user show user_amara"))
@click.argument("user_id", metavar="ID")
@admin_options
@prints
def show_user(user_id: str, api: Api) -> Result:
    """Show a user's connections, number of rows, and last, waiting and dead deliveries.

    Deliveries that died before the user connected are processed by `headwater replay --user ID`.
    """
    stored: dict[str, Any] = api.get(path_of("admin", "user", user_id))
    counts = [{"table": name, "rows": number} for name, number in stored["counts"].items()]
    tables = [Columns(("table", "rows")).table(counts, "counts")]
    sources = [
        {"source": source["source"], "table": name, "rows": number, "last": source["updated_at"]}
        for source in stored["sources"]
        for name, number in source["rows"].items()
    ]
    if sources:
        tables.append(_SOURCES.table(sources, "rows by source"))
    for name, title, columns in (
        ("connections", "connections", _CONNECTIONS),
        ("activity", "what came last of active connections", _ACTIVITY),
        ("last_outcomes", "last deliveries", _OUTCOMES),
        ("waiting", "waiting deliveries", _OUTCOMES),
        ("dead", "dead deliveries", _OUTCOMES),
    ):
        if stored[name]:
            tables.append(columns.table(stored[name], title))
    hints = [] if any(stored["counts"].values()) else [f"There is no data of {user_id}."]
    return Result(answer=stored, tables=tables, hints=hints)


# -- operations that a workflow carries out


def _started(answer: dict[str, Any], what: str) -> Result:
    """Return the answer of a route that started an instance, with the command to follow it."""
    instance = answer["instance"]
    follow = f"headwater instances get {instance['workflow']}/{instance['id']}"
    return Result(answer=answer, hints=[f"{what}; follow it: {follow}"])


@user.command(
    "import",
    epilog=examples(
        "headwater user import user_amara --days 30",
        "headwater user import user_amara --days 1460 --json | jq .instance",
    ),
)
@click.argument("user_id", metavar="ID")
@click.option(
    "--days", type=click.IntRange(1), required=True, help="Past days; at most 1460 are requested."
)
@admin_options
@prints
def import_user(user_id: str, days: int, api: Api) -> Result:
    """Request a user's past days from Terra, of all active connections.

    The data arrives as deliveries. Only one import of a user runs at a time.
    """
    answer = api.post(path_of("admin", "user", user_id, "import"), {"days": days})
    connections = counted(answer["connections"], "connection")
    return _started(answer, f"{counted(answer['days'], 'day')} of {connections} requested")


@user.command("imports", epilog=examples("headwater user imports user_amara"))
@click.argument("user_id", metavar="ID")
@admin_options
@prints
def list_imports(user_id: str, api: Api) -> Result:
    """Show what came of a user's imports, and of the backfill of each connection.

    For every type of data: Terra's answer to the request, deliveries within 7 days after it, and
    how many of the days have data. Not every day has an activity or a body measurement, so days are
    missing only of `daily` and `sleep`.
    """
    answer = api.get(path_of("admin", "user", user_id, "imports"))
    tables = [
        _REQUESTS.table(
            one["requests"],
            f"{one['workflow']}/{one['id']} ({one['status']}): "
            f"{one['first_day']} to {one['last_day']}",
        )
        for one in answer["imports"]
    ]
    hints = [] if tables else [f"There is no import of {user_id}."]
    return Result(answer=answer, tables=tables, hints=hints)


@user.command("reconcile", epilog=examples("headwater user reconcile user_amara"))
@click.argument("user_id", metavar="ID")
@admin_options
@prints
def reconcile_user(user_id: str, api: Api) -> Result:
    """Compare a user's connections with Terra's list, and request the last 7 days.

    A connection that only Terra has is opened here, and its last 90 days are requested; one that
    Terra no longer has is closed.
    """
    answer = api.post(path_of("admin", "user", user_id, "reconcile"), {})
    return _started(answer, "The connections are being compared")


@user.command(
    "disconnect",
    epilog=examples(
        "headwater user disconnect user_amara", "headwater user disconnect user_amara --yes"
    ),
)
@click.argument("user_id", metavar="ID")
@yes_option
@admin_options
@prints
def disconnect_user(user_id: str, yes: bool, api: Api) -> Result:
    """End all active connections of a user: at Terra, and then here.

    What has arrived stays. The user can connect again at any time.
    """
    url = path_of("admin", "user", user_id)
    if not yes:
        active = [row for row in api.get(url)["connections"] if row["active"]]
        names = ", ".join(f"{row['provider']} ({row['terra_user_id']})" for row in active)
        confirm(f"{user_id} has {names or 'no active connection'}; all would end.", "Continue?")
    answer = api.post(f"{url}/disconnect", {})
    return _started(answer, f"{counted(answer['connections'], 'connection')} being ended")


# -- wipe


class _Wipe(Order):
    name = "wipe"

    @override
    def begin(self, *, dry_run: bool) -> Operation:
        if not dry_run:
            return super().begin(dry_run=False)
        user = self.api.get(self.path.removesuffix("/wipe"))
        stored = {name: user[name] for name in ("user_id", "counts")}
        return {"id": None, "state": "dry_run", "done": True, "deleted": {}, **stored}

    @override
    def poll(self, state: Operation) -> Operation:
        # Only the response to the request has the number of files and the connections.
        following = super().poll(state)
        names = ("disconnected", "still_connected", "terra_list_read")
        kept: Operation = {name: state[name] for name in names if name in state}
        deleted = state.get("deleted", {}) | following["deleted"]
        return {**following, **kept, "deleted": deleted}

    @override
    def effect(self, state: Operation) -> str:
        counts = ", ".join(f"{n} of {name}" for name, n in state["counts"].items() if n)
        owner = state["user_id"]
        return f"{owner} has: {counts or 'nothing'}; all of it would be permanently deleted."

    @override
    def progress(self, state: Operation) -> str:
        running = "" if state["done"] else " so far; it continues by itself, also after Ctrl-C"
        return f"{counted(sum(state['deleted'].values()), 'record')} deleted{running}"

    @override
    def summary(self, state: Operation) -> str:
        summary = super().summary(state)
        if left := state.get("still_connected"):
            summary += (
                f"; Terra did not confirm the end of {', '.join(left)}: disconnect them in Terra's "
                "dashboard, or wipe the user again"
            )
        if state.get("terra_list_read") is False:
            summary += (
                "; Terra's list could not be read, so connections that only Terra has may remain: "
                "look for them in Terra's dashboard, or wipe the user again"
            )
        return summary

    @override
    def tables(self, state: Operation) -> Sequence[Table]:
        rows = [{"of": name, "deleted": number} for name, number in state["deleted"].items()]
        return [_DELETED.table(rows)] if rows else ()


@user.command(
    "wipe",
    epilog=examples(
        "headwater user wipe user_amara",
        "headwater user wipe user_amara --yes",
        "headwater user wipe user_amara --follow 01J…    follow one that was begun before",
    ),
)
@click.argument("user_id", metavar="ID")
@order_command
def wipe_user(user_id: str, api: Api) -> Order:
    """Delete everything that came from a user's deliveries so far, and end the connections.

    Terra ends them first; if it does not answer within seconds, the command says so at its end, and
    the wipe goes on. Without Postgres, which names the connections, nothing is wiped. It cannot be
    undone. For 30 days, later deliveries that name the user are skipped, until the user connects
    again. A wipe that was accepted is completed, even if processes crash meanwhile; repeating it is
    safe, and shows how much was left.
    """
    return _Wipe(api, {}, path_of("admin", "user", user_id, "wipe"))
