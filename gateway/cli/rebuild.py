"""`headwater rebuild`: build a projection again in new tables, compare, and switch to it."""

from typing import Any, Final

import click

from headwater.gateway.cli.api import Api, admin_options, path_of
from headwater.gateway.cli.following import followed
from headwater.gateway.cli.options import examples, json_option
from headwater.gateway.cli.output import counted, print_json, print_rows, say

_FAILED: Final = 1
_RUNNING: Final = ("building", "switching", "switching_back")
_COLUMNS: Final = ("change", "key", "column", "before", "after")


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
@click.option("--detach", is_flag=True, help="Do not wait until it is compared.")
@admin_options
@json_option
def rebuild(  # noqa: PLR0913 (its options)
    *,
    projection: str | None,
    dry_run: bool,
    show: str | None,
    switch: str | None,
    back: str | None,
    detach: bool,
    api: Api,
    as_json: bool,
) -> None:
    """Build a table, or the workflows, again from offset 0 with this release, and compare.

    The old version serves reads meanwhile. A rebuild continues if this command or the projector
    ends. A table is compared with its topic: rows that were changed in Postgres by hand are no
    difference.
    """
    if sum(choice is not None for choice in (projection, show, switch, back)) != 1:
        raise click.UsageError("expected one of PROJECTION, --show, --switch, --back")
    if dry_run and projection is None:
        raise click.UsageError("expected --dry-run with a PROJECTION, found it without one")
    if projection is not None:
        operation = api.post("/admin/rebuilds", {"projection": projection, "dry_run": dry_run})
    elif switch is not None:
        operation = api.post(f"{_path(switch)}/switch", {})
    elif back is not None:
        operation = api.post(f"{_path(back)}/back", {})
    else:
        operation = api.get(_path(show or ""))
    if not detach and show is None:
        operation = _follow_build(api, operation, quiet=as_json)
    _print(operation, as_json=as_json)
    if operation["state"] == "failed":
        raise click.exceptions.Exit(_FAILED)


def _path(rebuild_id: str) -> str:
    return path_of("admin", "rebuilds", rebuild_id)


def _follow_build(api: Api, operation: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    return followed(
        operation,
        poll=lambda: api.get(_path(operation["id"])),
        is_running=lambda current: current["state"] in _RUNNING,
        progress=None if quiet else _progress,
    )


def _progress(operation: dict[str, Any]) -> str:
    progress = operation["progress"]
    total = counted(progress["total"], "record")
    return f"{operation['state']}: {progress['applied']} of {total}"


def _print(operation: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(operation)
        return
    difference = operation["difference"]
    say(
        f"rebuild {operation['id']} of {operation['projection']}, version {operation['version']}: "
        f"{operation['state']}; {counted(difference['added'], 'row')} added, "
        f"{difference['removed']} removed, {difference['changed']} changed"
        f"{operation['error'] and ': ' + operation['error']}"
    )
    rows = [
        {
            "change": example["kind"],
            "key": "/".join(map(str, example["key"].values())),
            "column": column,
            "before": before,
            "after": after,
        }
        for example in difference["examples"]
        for column, (before, after) in example["columns"].items()
    ]
    if rows:
        print_rows(rows, _COLUMNS, drops=("before", "column"))
