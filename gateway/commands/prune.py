"""`headwater instances prune`: instances that are past their retention are removed for good."""

import click

from headwater.gateway.commands.following import Answer, How, begin_options, carry_out
from headwater.gateway.commands.options import examples
from headwater.gateway.commands.output import counted, print_rows


@click.command(
    epilog=examples(
        "headwater instances prune --dry-run        how many of which workflow",
        "headwater instances prune -w report --yes",
        "headwater instances prune --follow 01J…    how far one is that was begun before",
    )
)
@click.option("-w", "--workflow", metavar="NAME", help="Of one workflow alone.")
@begin_options("prune")
def prune(*, how: How, workflow: str | None) -> None:
    """Remove instances that are past their retention, from rows, snapshots, stores and the log.

    HEADWATER_RETENTION of the projector says how long instances are kept once they have ended; by
    default that is for ever. One to which something happens meanwhile, such as a restart, stays. A
    prune goes on by itself if this command, or a worker, ends.
    """
    order = {"workflow": workflow} if workflow else {}
    found = carry_out("prune", order, how, done="removed for good", count=_many, far=_far)
    if found["state"] == "dry_run" and not how.as_json:
        rows = [{"workflow": name, "past": past} for name, past in found["by_workflow"].items()]
        print_rows(rows, ("workflow", "past"))


def _far(found: Answer) -> str:
    kept = f", {found['kept']} stay: something has happened to them" if found["kept"] else ""
    erasing = "; the log forgets them" if found["state"] == "erasing" else ""
    return f"{found['deleted']} of {_many(found['matched'])} deleted{kept}{erasing}"


def _many(number: int) -> str:
    return counted(number, "instance")
