"""Commands that begin an operation in a gateway or worker and follow it to its end."""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, Final, TypeAlias

import click

from headwater.gateway.cli.api import Api, admin_options, path_of
from headwater.gateway.cli.options import combined, json_option
from headwater.gateway.cli.output import print_json, say

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
