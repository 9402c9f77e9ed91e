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
            received = "both" if selectors else "neither; usual cause: an empty variable"
            raise click.UsageError(
                f"expected ids or options that select deliveries, or --all, found {received}"
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
_VERIFIED: Final = "verified"


def has_differences(state: Operation) -> bool:
    """Return whether rows differ in a rebuild or a verification."""
    return any(state["difference"][kind] for kind in ("added", "removed", "changed"))


class _Rebuild(Order):
    """A rebuild; nothing confirms it, as it changes no row, and a switch can be undone."""

    name = "rebuild"

    @override
    def progress(self, state: Operation) -> str:
        progress = state["progress"]
        return f"{state['state']}: {progress['applied']} of {counted(progress['total'], 'record')}"

    @override
    def summary(self, state: Operation) -> str:
        difference, projection = state["difference"], state["projection"]
        if state["state"] == _VERIFIED:
            if not has_differences(state):
                return f"{projection}: the rows in Postgres equal those in Kafka"
            return (
                f"{projection}: {counted(difference['added'], 'row')} missing in Postgres, "
                f"{difference['removed']} that should not be there, {difference['changed']} with "
                f"other values; to repair them: headwater rebuild {projection}, and "
                "headwater rebuild --switch with its id"
            )
        return (
            f"rebuild {state['id']} of {projection}, version {state['version']}: "
            f"{state['state']}; {counted(difference['added'], 'row')} added, "
            f"{difference['removed']} removed, {difference['changed']} changed"
            f"{state['error'] and ': ' + state['error']}"
        )

    @override
    def is_failed(self, state: Operation) -> bool:
        differs = state["state"] == _VERIFIED and has_differences(state)
        return differs or super().is_failed(state)

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
        "headwater rebuild --verify                    compare all tables with Kafka",
        "headwater rebuild --verify daily_summary      compare one",
    )
)
@click.argument("projection", required=False)
@click.option("--dry-run", is_flag=True, help="Build and compare only; it cannot be switched to.")
@click.option("--verify", is_flag=True, help="Compare rows with Kafka only; exit 1 if some differ.")
@click.option("--show", metavar="ID", help="Show a rebuild.")
@click.option("--switch", metavar="ID", help="Switch to a rebuild that is compared.")
@click.option("--back", metavar="ID", help="Undo a switch.")
@detach_option
@admin_options
@prints
def rebuild(
    *, dry_run: bool, verify: bool, detach: bool, api: Api, **choices: str | None
) -> Result:
    """Build a table, or the workflows, again from offset 0 with this release, and compare.

    The old version serves reads meanwhile. A rebuild continues if this command or the projector
    ends. A switch makes Postgres equal to it, including rows that were changed or lost there.

    --verify reads rows from the topic of the table instead, or the histories of workflows, which
    is cheap: it finds what was changed in Postgres or written wrongly, and changes nothing. It runs
    every night for all tables, and `headwater doctor` shows the results.
    """
    chosen = [(name, value) for name, value in choices.items() if value is not None]
    if verify:
        if dry_run or [name for name, _ in chosen if name != "projection"]:
            raise click.UsageError("expected --verify with a PROJECTION or alone, found more")
        return _verified(api, choices["projection"], detach=detach)
    if len(chosen) != 1:
        raise click.UsageError("expected one of PROJECTION, --show, --switch, --back, --verify")
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


def _verified(api: Api, projection: str | None, *, detach: bool) -> Result:
    """Verify a projection, or all of them one after the other."""
    if projection is not None:
        order = _Rebuild(api, {"projection": projection, "verify": True})
        return order.finish(order.begin(dry_run=False), detach=detach)
    names = api.get("/admin/rebuilds", limit=1)["projections"]
    results = [_verified(api, name, detach=detach) for name in names]
    return Result(
        answer=[result.answer for result in results],
        tables=[table for result in results for table in result.tables],
        hints=[hint for result in results for hint in result.hints],
        failed=any(result.failed for result in results),
    )
