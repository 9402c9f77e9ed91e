"""`headwater instances prune`: instances that are past their retention are removed for good."""

from typing import Any, Final

import click

from headwater.gateway.commands.following import begun, followed
from headwater.gateway.commands.operate import admin_api
from headwater.gateway.commands.options import admin_options, examples, json_option
from headwater.gateway.commands.output import counted, print_json, print_rows, say

_FAILED: Final = 1


@click.command(
    epilog=examples(
        "headwater instances prune --dry-run        how many of which workflow",
        "headwater instances prune -w report --yes",
        "headwater instances prune --follow 01J…    how far one is that was begun before",
    )
)
@click.option("-w", "--workflow", metavar="NAME", help="Of one workflow alone.")
@click.option("--dry-run", is_flag=True, help="Count them, and do nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--detach", is_flag=True, help="Do not wait until it is done.")
@click.option("--follow", metavar="ID", help="Begin nothing: follow a prune to its end.")
@admin_options
@json_option
def prune(  # noqa: PLR0913 (one parameter a flag; click names them)
    *,
    workflow: str | None,
    dry_run: bool,
    yes: bool,
    detach: bool,
    follow: str | None,
    url: str | None,
    admin_key: str | None,
    as_json: bool,
) -> None:
    """Remove instances that are past their retention, from rows, snapshots, stores and the log.

    HEADWATER_RETENTION of the projector says how long instances are kept once they have ended; by
    default that is for ever. One to which something happens meanwhile, such as a restart, stays. A
    prune goes on by itself if this command, or a worker, ends.
    """
    api = admin_api(url, admin_key)
    if follow is not None:
        found = api.get(f"/admin/prunes/{follow}")
    else:
        found = begun(
            api,
            "/admin/prunes",
            {"workflow": workflow} if workflow else {},
            dry_run=dry_run,
            yes=yes or as_json,
            will_be=lambda found: f"{_many(found['matched'])} will be removed, for good.",
        )
    if not detach:
        path = f"/admin/prunes/{found['id']}"
        found = followed(
            found,
            look=lambda: api.get(path),
            under_way=lambda now: now["state"] in {"deleting", "erasing"},
            how_far=None if as_json else _far,
        )
    if as_json:
        print_json(found)
    elif found["state"] == "dry_run":
        rows = [{"workflow": name, "past": past} for name, past in found["by_workflow"].items()]
        print_rows(rows, ("workflow", "past"))
        say(f"{_many(found['matched'])} would be removed.")
    else:
        say(f"prune {found['id']} {found['state']}: {_far(found)}")
    if found["state"] == "failed":
        raise click.exceptions.Exit(_FAILED)


def _far(found: dict[str, Any]) -> str:
    kept = f", {found['kept']} stay: something has happened to them" if found["kept"] else ""
    erasing = "; the log forgets them" if found["state"] == "erasing" else ""
    return f"{found['deleted']} of {_many(found['matched'])} deleted{kept}{erasing}"


def _many(number: int) -> str:
    return counted(number, "instance")
