"""Operations: commands that count, confirm, order and follow; among them replay, prune, rebuild."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, TypeAlias

import click

from headwater.gateway.cli.api import Api, admin_options, path_of
from headwater.gateway.cli.options import combined, confirm, detach_option, examples, yes_option
from headwater.gateway.cli.output import counted, print_json, print_rows, say, say_progress
from headwater.gateway.cli.results import json_option

#: State of an operation, as its route returns it.
Operation: TypeAlias = dict[str, Any]

#: Seconds between requests while an operation is followed.
_POLL_EVERY_S: Final = 1.0
_FAILED: Final = 1
_RUNNING: Final = (
    *("running", "deleting", "erasing"),
    *("building", "switching", "switching_back"),
)


def followed(
    operation: Operation,
    *,
    poll: Callable[[Operation], Operation],
    is_running: Callable[[Operation], bool],
    progress: Callable[[Operation], str] | None,
    pause_s: float = _POLL_EVERY_S,
) -> Operation:
    """Poll an operation until it has ended; return its last state.

    Args:
        operation: The operation.
        poll: Returns its next state.
        is_running: Whether it has not ended.
        progress: Returns the text of its progress, printed when it changes; None for no text.
        pause_s: Seconds between two polls.
    """
    shown = ""
    while is_running(operation):
        if progress is not None and (text := progress(operation)) != shown:
            shown = text
            say_progress(text)
        time.sleep(pause_s)
        operation = poll(operation)
    if shown:
        say_progress("")
    return operation


def exit_if(failed: object) -> None:
    """Exit with 1 if an operation, or a part of it, has failed."""
    if failed:
        raise click.exceptions.Exit(_FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationKind:
    """A kind of operation; its routes are below /admin/{name}s.

    Attributes:
        name: Name of an operation.
        progress: Returns the text of an operation's progress.
        summary: Returns the text of an operation that has ended, if its progress is not enough.
        print_details: Prints what the text does not show.
    """

    name: str
    progress: Callable[[Operation], str]
    summary: Callable[[Operation], str] | None = None
    print_details: Callable[[Operation], None] = lambda _: None

    def path(self, *segments: str) -> str:
        """Return the path of a route."""
        return path_of("admin", f"{self.name}s", *segments)

    def finish(self, api: Api, operation: Operation, *, detach: bool, as_json: bool) -> None:
        """Follow an operation to its end, unless `detach`; print it; exit with 1 if it failed."""
        if not detach:
            operation = followed(
                operation,
                poll=lambda current: api.get(self.path(current["id"])),
                is_running=lambda current: current["state"] in _RUNNING,
                progress=None if as_json else self.progress,
            )
        if as_json:
            print_json(operation)
        else:
            text = f"{self.name} {operation['id']} {operation['state']}: {self.progress(operation)}"
            say(text if self.summary is None else self.summary(operation))
            self.print_details(operation)
        exit_if(operation["state"] == "failed")


def begin_command(
    kind: OperationKind, done: str, *nouns: str
) -> Callable[[Callable[..., Operation]], Callable[..., None]]:
    """Turn a function that returns the body of a request into one that carries it out.

    It counts, asks for confirmation, begins the operation, and follows it; or only follows one.
    Nothing is counted in advance if no confirmation is needed.

    Args:
        kind: The kind of operation.
        done: Participle of what happens to the counted things, for example "deleted".
        nouns: Singular and plural of a counted thing.
    """
    options = combined(
        click.option("--dry-run", is_flag=True, help="Count them, and change nothing."),
        yes_option,
        detach_option,
        click.option(
            "--follow", metavar="ID", help=f"Begin nothing: follow a {kind.name} to its end."
        ),
        admin_options,
        json_option,
    )

    def with_options(request_of: Callable[..., Operation]) -> Callable[..., None]:
        @wraps(request_of)
        def command(
            *,
            dry_run: bool,
            yes: bool,
            detach: bool,
            follow: str | None,
            api: Api,
            as_json: bool,
            **values: Any,  # noqa: ANN401 (the command's own)
        ) -> None:
            request, path = request_of(**values), kind.path()
            counting = {**request, "dry_run": True}
            if follow is not None:
                if extra := [*(counting if dry_run else request)]:
                    found = ", ".join(extra)
                    raise click.UsageError(f"expected --follow alone, found {found} as well")
                operation = api.get(kind.path(follow))
            elif dry_run:
                operation = api.post(path, counting)
            else:
                if not (yes or as_json):
                    count = counted(api.post(path, counting)["matched"], *nouns)
                    confirm(f"{count} will be {done}.", "Continue?")
                operation = api.post(path, request)
            if dry_run and not as_json:
                say(f"{counted(operation['matched'], *nouns)} would be {done}.")
                kind.print_details(operation)
            else:
                kind.finish(api, operation, detach=detach, as_json=as_json)

        return options(command)

    return with_options


# -- `headwater replay`: process deliveries again, after showing how many they are


def _replay_progress(operation: Operation) -> str:
    lost = f", {operation['gone']} no longer in the log" if operation["gone"] else ""
    matched = counted(operation["matched"], "delivery", "deliveries")
    return f"{operation['replayed']} of {matched}{lost}"


_REPLAY: Final = OperationKind(name="replay", progress=_replay_progress)


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
@begin_command(_REPLAY, "replayed", "delivery", "deliveries")
def replay(**filters: Any) -> Operation:  # noqa: ANN401 (fields of the route)
    """Process deliveries again: those that match all options.

    Rows do not change, unless a normalizer now accepts deliveries that were dead. A replay
    continues if this command or a worker ends.
    """
    names = {"type_": "type", "from_": "from"}
    fields = {names.get(name, name): value for name, value in filters.items()}
    return {name: value for name, value in fields.items() if value is not None and value != ()}


# -- `headwater instances prune`


def _prune_progress(operation: Operation) -> str:
    kept = f", {operation['kept']} kept because they changed" if operation["kept"] else ""
    erasing = "; compacting the log" if operation["state"] == "erasing" else ""
    matched = counted(operation["matched"], "instance")
    return f"{operation['deleted']} of {matched} deleted{kept}{erasing}"


def _print_past(operation: Operation) -> None:
    if operation["state"] == "dry_run":
        rows = [{"workflow": name, "past": n} for name, n in operation["by_workflow"].items()]
        print_rows(rows, ("workflow", "past"))


_PRUNE: Final = OperationKind(name="prune", progress=_prune_progress, print_details=_print_past)


@click.command(
    epilog=examples(
        "headwater instances prune --dry-run        count them by workflow",
        "headwater instances prune -w report --yes",
        "headwater instances prune --follow 01J…    follow one that was begun before",
    )
)
@click.option("-w", "--workflow", metavar="NAME", help="Only instances of this workflow.")
@begin_command(_PRUNE, "permanently deleted", "instance")
def prune(workflow: str | None) -> Operation:
    """Delete instances past their retention from rows, snapshots, stores and the log.

    HEADWATER_RETENTION of the projector sets how long ended instances are kept; by default
    indefinitely. An instance that changes meanwhile, for example by a restart, is kept. A prune
    continues if this command or a worker ends.
    """
    return {"workflow": workflow} if workflow else {}


# -- `headwater rebuild`

_DIFFERENCE_COLUMNS: Final = ("change", "key", "column", "before", "after")


def _rebuild_progress(operation: Operation) -> str:
    progress = operation["progress"]
    total = counted(progress["total"], "record")
    return f"{operation['state']}: {progress['applied']} of {total}"


def _rebuild_summary(operation: Operation) -> str:
    difference = operation["difference"]
    return (
        f"rebuild {operation['id']} of {operation['projection']}, version {operation['version']}: "
        f"{operation['state']}; {counted(difference['added'], 'row')} added, "
        f"{difference['removed']} removed, {difference['changed']} changed"
        f"{operation['error'] and ': ' + operation['error']}"
    )


def _print_examples(operation: Operation) -> None:
    rows = [
        {
            "change": example["kind"],
            "key": "/".join(map(str, example["key"].values())),
            "column": column,
            "before": before,
            "after": after,
        }
        for example in operation["difference"]["examples"]
        for column, (before, after) in example["columns"].items()
    ]
    if rows:
        print_rows(rows, _DIFFERENCE_COLUMNS, drops=("before", "column"))


_REBUILD: Final = OperationKind(
    name="rebuild",
    progress=_rebuild_progress,
    summary=_rebuild_summary,
    print_details=_print_examples,
)


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
        operation = api.post(_REBUILD.path(), {"projection": projection, "dry_run": dry_run})
    elif switch is not None:
        operation = api.post(_REBUILD.path(switch, "switch"), {})
    elif back is not None:
        operation = api.post(_REBUILD.path(back, "back"), {})
    else:
        operation = api.get(_REBUILD.path(show or ""))
    _REBUILD.finish(api, operation, detach=detach or show is not None, as_json=as_json)
