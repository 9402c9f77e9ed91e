"""`headwater user`: show or wipe everything about one user."""

from collections.abc import Sequence
from typing import Any, Final

import click
from typing_extensions import override

from headwater.gateway.cli.api import Api, admin_options, path_of
from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import examples
from headwater.gateway.cli.orders import Operation, Order, order_command
from headwater.gateway.cli.output import counted
from headwater.gateway.cli.results import Columns, Result, Table, prints

_CONNECTIONS: Final = Columns(
    ("terra_user_id", "provider", "active", "deactivated_at", "scopes"), drops=("scopes",)
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
    """Show a user's connections, number of rows, and last, waiting and dead deliveries.

    Deliveries that died before the user connected are processed by `headwater replay --user ID`.
    """
    stored: dict[str, Any] = api.get(path_of("admin", "user", user_id))
    counts = [{"table": name, "rows": number} for name, number in stored["counts"].items()]
    tables = [Columns(("table", "rows")).table(counts, "counts")]
    for name, title, columns in (
        ("connections", "connections", _CONNECTIONS),
        ("last_outcomes", "last deliveries", _OUTCOMES),
        ("waiting", "waiting deliveries", _OUTCOMES),
        ("dead_before_connecting", "deliveries that died before the user connected", _OUTCOMES),
    ):
        if stored.get(name):
            tables.append(columns.table(stored[name], title))
    hints = [] if any(stored["counts"].values()) else [f"There is no data of {user_id}."]
    return Result(answer=stored, tables=tables, hints=hints)


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
        # Only the response to the request has the number of files.
        following = super().poll(state)
        return {**following, "deleted": state.get("deleted", {}) | following["deleted"]}

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
    """Delete everything that came from a user's deliveries so far.

    It cannot be undone. For 30 days, later deliveries that name the user are skipped, until the
    user connects again. A wipe that was accepted is completed, even if processes crash meanwhile;
    repeating it is safe, and shows how much was left.
    """
    return _Wipe(api, {}, path_of("admin", "user", user_id, "wipe"))
