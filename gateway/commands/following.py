"""What goes on by itself, in a gateway or a worker: begun, and looked at until it has ended."""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, Final, TypeAlias

import click

from headwater.gateway.commands.api import Api, admin_options, path_of
from headwater.gateway.commands.options import json_option, several
from headwater.gateway.commands.output import print_json, say

#: What is followed, as its route answers it.
Answer: TypeAlias = dict[str, Any]

#: Each look is a request.
_LOOK_EVERY_S: Final = 1.0
_FAILED: Final = 1
_OVER: Final = ("dry_run", "done", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """What `begin_options` were given."""

    dry_run: bool
    yes: bool
    detach: bool
    follow: str | None
    api: Api
    as_json: bool


def begin_options(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options of a command that begins something and follows it to its end, as `how`."""
    options = several(
        click.option("--dry-run", is_flag=True, help="Count them, and do nothing."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--detach", is_flag=True, help="Do not wait until it is done."),
        click.option("--follow", metavar="ID", help=f"Begin nothing: follow a {name} to its end."),
        admin_options,
        json_option,
    )

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_how(**given: Any) -> None:  # noqa: ANN401 (click's values)
            how = How(**{field.name: given.pop(field.name) for field in fields(How)})
            command(how=how, **given)

        return options(with_how)

    return with_options


def carry_out(
    name: str,
    order: Answer,
    how: How,
    *,
    done: str,
    count: Callable[[int], str],
    far: Callable[[Answer], str],
) -> Answer:
    """Counts, asks, begins, and follows to the end; with an id to follow it only does that.

    Nothing is counted beforehand where nobody is asked.

    Shape:  its route is /admin/{name}s; done says what happens to those that were counted, far how
            far it is.
    Errors: UsageError, for an order beside an id; Exit, if it has failed.
    """
    if how.follow is not None and (beside := [*order, *(["dry_run"] if how.dry_run else [])]):
        raise click.UsageError(f"expected --follow alone, found {', '.join(beside)} beside it")
    api, path = how.api, f"/admin/{name}s"
    found: Answer
    if how.follow is not None:
        found = api.get(path + path_of(how.follow))
    elif how.dry_run:
        found = api.post(path, {**order, "dry_run": True})
    else:
        if not (how.yes or how.as_json):
            matched = api.post(path, {**order, "dry_run": True})["matched"]
            say(f"{count(matched)} will be {done}.")
            click.confirm("Go on?", abort=True, err=True)
        found = api.post(path, order)
    if not how.detach:
        found = followed(
            found,
            look=lambda: api.get(f"{path}/{found['id']}"),
            under_way=lambda now: now["state"] not in _OVER,
            how_far=None if how.as_json else far,
        )
    if how.as_json:
        print_json(found)
    elif how.dry_run:
        say(f"{count(found['matched'])} would be {done}.")
    else:
        say(f"{name} {found['id']} {found['state']}: {far(found)}")
    if found["state"] == "failed":
        raise click.exceptions.Exit(_FAILED)
    return found


def followed(
    found: Answer,
    *,
    look: Callable[[], Answer],
    under_way: Callable[[Answer], bool],
    how_far: Callable[[Answer], str] | None,
    pause: Callable[[float], None] = time.sleep,
) -> Answer:
    """Looks until nothing is under way any more, and gives what is then.

    Shape:  how far it is, is said whenever that has changed; without `how_far` nothing is.
    """
    shown = ""
    while under_way(found):
        if how_far is not None and (far := how_far(found)) != shown:
            shown = far
            say(far)
        pause(_LOOK_EVERY_S)
        found = look()
    return found
