"""`headwater replay`, `instances prune` and `rebuild`."""

from collections.abc import Sequence
from typing import Any, Final

import click
from typing_extensions import override

from headwater.gateway.cli.api import Api, admin_options, path_of
from headwater.gateway.cli.options import detach_option, examples
from headwater.gateway.cli.orders import Operation, Order, order_command
from headwater.gateway.cli.output import counted
from headwater.gateway.cli.results import Columns, Result, Table, prints

# -- `headwater replay`: process deliveries again, after showing how many they are


class _Replay(Order):
    name, nouns, done = "replay", ("delivery", "deliveries"), "replayed"

    @override
    def begin(self, *, dry_run: bool) -> Operation:
        selectors = [name for name in self.body if name not in ("all", "rate")]
        if ("all" in self.body) is bool(selectors):
            found = "both" if selectors else "neither; usual cause: an empty variable"
            raise click.UsageError(
                f"expected ids or options that select deliveries, or --all, found {found}"
            )
        return super().begin(dry_run=dry_run)

    @override
    def progress(self, state: Operation) -> str:
        lost = f", {state['gone']} no longer in the log" if state["gone"] else ""
        return f"{state['replayed']} of {counted(state['matched'], *self.nouns)}{lost}"

    @override
    def summary(self, state: Operation) -> str:
        return super().summary(state) if state["matched"] else "No delivery matches."


@click.command(
    epilog=examples(
        "headwater replay --user user_amara --dry-run",
        "headwater replay --type sleep --since 2026-07-01T00:00:00Z --rate 200",
        "headwater replay --partition 3 --from 1000 --to 2000 --yes",
        "headwater replay 0d1e… 77ab…      by id",
        "headwater replay --all            all deliveries",
        "headwater replay --follow 01J…    follow one that was begun before",
    )
)
@click.argument("ids", nargs=-1)
@click.option("--source", help="Only from this source.")
@click.option("--type", "type_", help="Only of this type.")
@click.option("--user", "user_id", help="Only of this user.")
@click.option("--since", metavar="TIME", help="Received at or after; RFC 3339.")
@click.option("--until", metavar="TIME", help="Received before; RFC 3339.")
@click.option("--partition", type=click.IntRange(0), help="Only this partition of webhooks.")
@click.option("--from", "from_", type=click.IntRange(0), help="With --partition: first offset.")
@click.option("--to", type=click.IntRange(0), help="With --partition: last offset.")
@click.option("--all", is_flag=True, help="All deliveries.")
@click.option("--rate", type=click.IntRange(1), help="Limit of deliveries a second.")
@order_command
def replay(api: Api, **filters: Any) -> Order:  # noqa: ANN401 (fields of the route)
    """Process deliveries again: those that match all options, or --all.

    Rows do not change, unless a normalizer now accepts deliveries that were dead. A replay
    continues if this command or a worker ends.
    """
    names = {"type_": "type", "from_": "from"}
    fields = {names.get(name, name): value for name, value in filters.items()}
    chosen = {name: value for name, value in fields.items() if value not in (None, ())}
    return _Replay(api, {name: value for name, value in chosen.items() if value is not False})


# -- `headwater instances prune`


_PAST: Final = Columns(("workflow", "past"))


class _Prune(Order):
    name, nouns, done = "prune", ("instance", "instances"), "permanently deleted"

    @override
    def progress(self, state: Operation) -> str:
        kept = f", {state['kept']} kept because they changed" if state["kept"] else ""
        erasing = "; compacting the log" if state["state"] == "erasing" else ""
        return (
            f"{state['deleted']} of {counted(state['matched'], *self.nouns)} deleted{kept}{erasing}"
        )

    @override
    def tables(self, state: Operation) -> Sequence[Table]:
        if state["state"] != "dry_run":
            return ()
        rows = [{"workflow": name, "past": n} for name, n in state["by_workflow"].items()]
        return [_PAST.table(rows)]


@click.command(
    epilog=examples(
        "headwater instances prune --dry-run        count them by workflow",
        "headwater instances prune -w report --yes",
        "headwater instances prune --follow 01J…    follow one that was begun before",
    )
)
@click.option("-w", "--workflow", metavar="NAME", help="Only instances of this workflow.")
@order_command
def prune(api: Api, workflow: str | None) -> Order:
    """Delete instances past their retention from rows, snapshots, stores and the log.

    HEADWATER_RETENTION of the projector sets how long ended instances are kept; by default
    indefinitely. An instance that changes meanwhile, for example by a restart, is kept. A prune
    continues if this command or a worker ends.
    """
    return _Prune(api, {"workflow": workflow} if workflow else {})


# -- `headwater rebuild`

_DIFFERENCES: Final = Columns(
    ("change", "key", "column", "before", "after"), drops=("before", "column")
)


class _Rebuild(Order):
    """A rebuild; nothing confirms it, as it changes no row, and a switch can be undone."""

    name = "rebuild"

    @override
    def progress(self, state: Operation) -> str:
        progress = state["progress"]
        return f"{state['state']}: {progress['applied']} of {counted(progress['total'], 'record')}"

    @override
    def summary(self, state: Operation) -> str:
        difference = state["difference"]
        return (
            f"rebuild {state['id']} of {state['projection']}, version {state['version']}: "
            f"{state['state']}; {counted(difference['added'], 'row')} added, "
            f"{difference['removed']} removed, {difference['changed']} changed"
            f"{state['error'] and ': ' + state['error']}"
        )

    @override
    def tables(self, state: Operation) -> Sequence[Table]:
        rows = [
            {
                "change": example["kind"],
                "key": "/".join(map(str, example["key"].values())),
                "column": column,
                "before": before,
                "after": after,
            }
            for example in state["difference"]["examples"]
            for column, (before, after) in example["columns"].items()
        ]
        return [_DIFFERENCES.table(rows)] if rows else ()


@click.command(
    epilog=examples(
        "headwater rebuild daily_summary               build and compare; switches nothing",
        "headwater rebuild workflows                   instances, steps, events and log lines",
        "headwater rebuild --switch 01J…               replace the old rows with the new ones",
        "headwater rebuild --back 01J…                 restore the old rows",
        "headwater rebuild --show 01J… --json",
    )
)
@click.argument("projection", required=False)
@click.option("--dry-run", is_flag=True, help="Build and compare only; it cannot be switched to.")
@click.option("--show", metavar="ID", help="Show a rebuild.")
@click.option("--switch", metavar="ID", help="Switch to a rebuild that is compared.")
@click.option("--back", metavar="ID", help="Undo a switch.")
@detach_option
@admin_options
@prints
def rebuild(*, dry_run: bool, detach: bool, api: Api, **choices: str | None) -> Result:
    """Build a table, or the workflows, again from offset 0 with this release, and compare.

    The old version serves reads meanwhile. A rebuild continues if this command or the projector
    ends. A table is compared with its topic: rows that were changed in Postgres by hand are no
    difference.
    """
    chosen = [(name, value) for name, value in choices.items() if value is not None]
    if len(chosen) != 1:
        raise click.UsageError("expected one of PROJECTION, --show, --switch, --back")
    choice, value = chosen[0]
    if dry_run and choice != "projection":
        raise click.UsageError("expected --dry-run with a PROJECTION, found it without one")
    order = _Rebuild(api, {"projection": value, "dry_run": dry_run})
    match choice:
        case "projection":
            operation = order.begin(dry_run=False)
        case "show":
            operation, detach = order.poll({"id": value}), True
        case _:
            operation = api.post(order.path + path_of(value, choice), {})
    return order.finish(operation, detach=detach)
