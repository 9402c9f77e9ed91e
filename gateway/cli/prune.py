"""`headwater instances prune`: delete instances that ended longer ago than their retention."""

import click

from headwater.gateway.cli.following import (
    Operation,
    OperationOptions,
    begin_options,
    carry_out,
)
from headwater.gateway.cli.options import examples
from headwater.gateway.cli.output import counted, print_rows


@click.command(
    epilog=examples(
        "headwater instances prune --dry-run        count them by workflow",
        "headwater instances prune -w report --yes",
        "headwater instances prune --follow 01J…    follow one that was begun before",
    )
)
@click.option("-w", "--workflow", metavar="NAME", help="Only instances of this workflow.")
@begin_options("prune")
def prune(*, options: OperationOptions, workflow: str | None) -> None:
    """Delete instances past their retention from rows, snapshots, stores and the log.

    HEADWATER_RETENTION of the projector sets how long ended instances are kept; by default
    indefinitely. An instance that changes meanwhile, for example by a restart, is kept. A prune
    continues if this command or a worker ends.
    """
    request = {"workflow": workflow} if workflow else {}
    operation = carry_out(
        "prune", request, options, done="permanently deleted", count=_counted, progress=_progress
    )
    if operation["state"] == "dry_run" and not options.as_json:
        rows = [
            {"workflow": name, "past": count} for name, count in operation["by_workflow"].items()
        ]
        print_rows(rows, ("workflow", "past"))


def _progress(operation: Operation) -> str:
    kept = f", {operation['kept']} kept because they changed" if operation["kept"] else ""
    erasing = "; compacting the log" if operation["state"] == "erasing" else ""
    return f"{operation['deleted']} of {_counted(operation['matched'])} deleted{kept}{erasing}"


def _counted(number: int) -> str:
    return counted(number, "instance")
