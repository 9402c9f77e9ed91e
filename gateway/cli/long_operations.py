"""Commands that begin a long operation and follow it: replay, prune and rebuild."""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, Final, TypeAlias

import click

from headwater.gateway.cli.api import Api, admin_options, path_of
from headwater.gateway.cli.options import combined, examples
from headwater.gateway.cli.output import counted, print_json, print_rows, say
from headwater.gateway.cli.results import json_option

#: The operation, as its route returns it.
Operation: TypeAlias = dict[str, Any]

#: Seconds between requests while an operation is followed.
_POLL_EVERY_S: Final = 1.0
_FAILED: Final = 1
_ENDED: Final = ("dry_run", "done", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationOptions:
    """Values of `begin_options`."""

    dry_run: bool
    yes: bool
    detach: bool
    follow: str | None
    api: Api
    as_json: bool


def begin_options(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of a command that begins and follows an operation; pass it `options`."""
    decorator = combined(
        click.option("--dry-run", is_flag=True, help="Count them, and change nothing."),
        click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
        click.option("--detach", is_flag=True, help="Do not wait for its end."),
        click.option("--follow", metavar="ID", help=f"Begin nothing: follow a {name} to its end."),
        admin_options,
        json_option,
    )

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_operation_options(**values: Any) -> None:  # noqa: ANN401 (click's values)
            decorator = OperationOptions(
                **{field.name: values.pop(field.name) for field in fields(OperationOptions)}
            )
            command(options=decorator, **values)

        return decorator(with_operation_options)

    return with_options


def carry_out(
    name: str,
    request: Operation,
    options: OperationOptions,
    *,
    done: str,
    count: Callable[[int], str],
    progress: Callable[[Operation], str],
) -> Operation:
    """Count, confirm, begin an operation and follow it to its end; or only follow one.

    Nothing is counted in advance if no confirmation is needed.

    Args:
        name: Name of the operation; its route is /admin/{name}s.
        request: Body of the request.
        options: Values of `begin_options`.
        done: Participle of what happens to the counted things, for example "deleted".
        count: Returns the text of a count.
        progress: Returns the text of an operation's progress.

    Raises:
        UsageError: `request` is combined with an id to follow.
        Exit: The operation failed.
    """
    if options.follow is not None and (
        extra := [*request, *(["dry_run"] if options.dry_run else [])]
    ):
        raise click.UsageError(f"expected --follow alone, found {', '.join(extra)} as well")
    api, path = options.api, f"/admin/{name}s"
    operation: Operation
    if options.follow is not None:
        operation = api.get(path + path_of(options.follow))
    elif options.dry_run:
        operation = api.post(path, {**request, "dry_run": True})
    else:
        if not (options.yes or options.as_json):
            matched = api.post(path, {**request, "dry_run": True})["matched"]
            say(f"{count(matched)} will be {done}.")
            click.confirm("Continue?", abort=True, err=True)
        operation = api.post(path, request)
    if not options.detach:
        operation = followed(
            operation,
            poll=lambda: api.get(f"{path}/{operation['id']}"),
            is_running=lambda current: current["state"] not in _ENDED,
            progress=None if options.as_json else progress,
        )
    if options.as_json:
        print_json(operation)
    elif options.dry_run:
        say(f"{count(operation['matched'])} would be {done}.")
    else:
        say(f"{name} {operation['id']} {operation['state']}: {progress(operation)}")
    if operation["state"] == "failed":
        raise click.exceptions.Exit(_FAILED)
    return operation


def followed(
    operation: Operation,
    *,
    poll: Callable[[], Operation],
    is_running: Callable[[Operation], bool],
    progress: Callable[[Operation], str] | None,
    pause: Callable[[float], None] = time.sleep,
) -> Operation:
    """Poll an operation until it has ended; return its last state.

    Args:
        operation: The operation.
        poll: Returns its current state.
        is_running: Whether it has not ended.
        progress: Returns the text of its progress, printed when it changes; None for no text.
        pause: Waits a number of seconds.
    """
    shown = ""
    while is_running(operation):
        if progress is not None and (text := progress(operation)) != shown:
            shown = text
            say(text)
        pause(_POLL_EVERY_S)
        operation = poll()
    return operation


# -- `headwater replay`


@click.command(
    epilog=examples(
        "headwater replay --user user_amara --dry-run",
        "headwater replay --type sleep --since 2026-07-01T00:00:00Z --rate 200",
        "headwater replay --partition 3 --from 1000 --to 2000 --yes",
        "headwater replay 0d1e… 77ab…      by id",
        "headwater replay                  all deliveries",
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
@click.option("--rate", type=click.IntRange(1), help="Limit of deliveries a second.")
@begin_options("replay")
def replay(*, options: OperationOptions, **filters: Any) -> None:  # noqa: ANN401 (fields of the route)
    """Process deliveries again: those that match all options.

    Rows do not change, unless a normalizer now accepts deliveries that were dead. A replay
    continues if this command or a worker ends.
    """
    names = {"type_": "type", "from_": "from"}
    fields = {names.get(name, name): value for name, value in filters.items()}
    request = {name: value for name, value in fields.items() if value is not None and value != ()}
    carry_out(
        "replay",
        request,
        options,
        done="replayed",
        count=_counted_deliveries,
        progress=_replay_progress,
    )


def _replay_progress(operation: Operation) -> str:
    lost = f", {operation['gone']} no longer in the log" if operation["gone"] else ""
    return f"{operation['replayed']} of {_counted_deliveries(operation['matched'])}{lost}"


def _counted_deliveries(number: int) -> str:
    return counted(number, "delivery", "deliveries")


# -- `headwater instances prune`


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
        "prune",
        request,
        options,
        done="permanently deleted",
        count=_counted_instances,
        progress=_prune_progress,
    )
    if operation["state"] == "dry_run" and not options.as_json:
        rows = [
            {"workflow": name, "past": count} for name, count in operation["by_workflow"].items()
        ]
        print_rows(rows, ("workflow", "past"))


def _prune_progress(operation: Operation) -> str:
    kept = f", {operation['kept']} kept because they changed" if operation["kept"] else ""
    erasing = "; compacting the log" if operation["state"] == "erasing" else ""
    matched = _counted_instances(operation["matched"])
    return f"{operation['deleted']} of {matched} deleted{kept}{erasing}"


def _counted_instances(number: int) -> str:
    return counted(number, "instance")


# -- `headwater rebuild`

_REBUILD_FAILED: Final = 1
_REBUILD_RUNNING: Final = ("building", "switching", "switching_back")
_DIFFERENCE_COLUMNS: Final = ("change", "key", "column", "before", "after")


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
        operation = api.post(f"{_rebuild_path(switch)}/switch", {})
    elif back is not None:
        operation = api.post(f"{_rebuild_path(back)}/back", {})
    else:
        operation = api.get(_rebuild_path(show or ""))
    if not detach and show is None:
        operation = _follow_build(api, operation, quiet=as_json)
    _print_rebuild(operation, as_json=as_json)
    if operation["state"] == "failed":
        raise click.exceptions.Exit(_REBUILD_FAILED)


def _rebuild_path(rebuild_id: str) -> str:
    return path_of("admin", "rebuilds", rebuild_id)


def _follow_build(api: Api, operation: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    return followed(
        operation,
        poll=lambda: api.get(_rebuild_path(operation["id"])),
        is_running=lambda current: current["state"] in _REBUILD_RUNNING,
        progress=None if quiet else _rebuild_progress,
    )


def _rebuild_progress(operation: dict[str, Any]) -> str:
    progress = operation["progress"]
    total = counted(progress["total"], "record")
    return f"{operation['state']}: {progress['applied']} of {total}"


def _print_rebuild(operation: dict[str, Any], *, as_json: bool) -> None:
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
        print_rows(rows, _DIFFERENCE_COLUMNS, drops=("before", "column"))
