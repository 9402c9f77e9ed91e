"""`headwater rebuild`: a projection made again beside the old one, compared, and switched to."""

from typing import Any, Final

import click

from headwater.gateway.commands.api import Api, admin_options, path_of
from headwater.gateway.commands.following import followed
from headwater.gateway.commands.options import examples, json_option
from headwater.gateway.commands.output import counted, print_json, print_rows, say

_FAILED: Final = 1
_UNDER_WAY: Final = ("building", "switching", "switching_back")
_COLUMNS: Final = ("change", "key", "column", "before", "after")


@click.command(
    epilog=examples(
        "headwater rebuild daily_summary               build and compare; switches nothing",
        "headwater rebuild workflows                   instances, steps, events and lines, too",
        "headwater rebuild --switch 01J…               put the new rows in the place of the old",
        "headwater rebuild --back 01J…                 and the old ones back",
        "headwater rebuild --show 01J… --json",
    )
)
@click.argument("projection", required=False)
@click.option("--dry-run", is_flag=True, help="Build and compare what is never switched to.")
@click.option("--show", metavar="ID", help="Show a rebuild.")
@click.option("--switch", metavar="ID", help="Switch to a rebuild that is compared.")
@click.option("--back", metavar="ID", help="Go back to what was before a switch.")
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
    """Make a table, or workflows, again with today's code, from offset 0 on, and compare.

    The old version goes on serving. A rebuild goes on by itself if this command, or the projector,
    ends. A table is compared with its topic: what somebody changed in Postgres by hand is no
    difference.
    """
    if sum(each is not None for each in (projection, show, switch, back)) != 1:
        raise click.UsageError("expected one of PROJECTION, --show, --switch, --back")
    if dry_run and projection is None:
        raise click.UsageError("expected --dry-run beside a PROJECTION, found it without one")
    if projection is not None:
        found = api.post("/admin/rebuilds", {"projection": projection, "dry_run": dry_run})
    elif switch is not None:
        found = api.post(f"{_path(switch)}/switch", {})
    elif back is not None:
        found = api.post(f"{_path(back)}/back", {})
    else:
        found = api.get(_path(show or ""))
    if not detach and show is None:
        found = _followed(api, found, quiet=as_json)
    _print(found, as_json=as_json)
    if found["state"] == "failed":
        raise click.exceptions.Exit(_FAILED)


def _path(rebuild_id: str) -> str:
    return path_of("admin", "rebuilds", rebuild_id)


def _followed(api: Api, found: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    return followed(
        found,
        look=lambda: api.get(_path(found["id"])),
        under_way=lambda now: now["state"] in _UNDER_WAY,
        how_far=None if quiet else _far,
    )


def _far(found: dict[str, Any]) -> str:
    progress = found["progress"]
    total = counted(progress["total"], "record")
    return f"{found['state']}: {progress['applied']} of {total}"


def _print(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    difference = found["difference"]
    say(
        f"rebuild {found['id']} of {found['projection']}, version {found['version']}: "
        f"{found['state']}; {counted(difference['added'], 'row')} added, "
        f"{difference['removed']} removed, {difference['changed']} changed"
        f"{found['error'] and ': ' + found['error']}"
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
