"""What goes on by itself, in a gateway or a worker: begun, and looked at until it has ended."""

import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import click

from headwater.gateway.commands.api import Api
from headwater.gateway.commands.output import say

#: What is followed, as its route answers it.
Answer: TypeAlias = dict[str, Any]

#: Each look is a request.
_LOOK_EVERY_S: Final = 1.0


def begun(
    api: Api,
    path: str,
    order: Answer,
    *,
    dry_run: bool,
    yes: bool,
    will_be: Callable[[Answer], str],
) -> Answer:
    """Counts, asks, and begins, unless it is a dry run.

    Shape:  will_be says, of what was counted, what is going to happen to it.
    """
    counted: Answer = api.post(path, {**order, "dry_run": True})
    if dry_run:
        return counted
    if not yes:
        say(will_be(counted))
        click.confirm("Go on?", abort=True, err=True)
    found: Answer = api.post(path, order)
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
    said = ""
    while under_way(found):
        if how_far is not None and (far := how_far(found)) != said:
            said = far
            say(far)
        pause(_LOOK_EVERY_S)
        found = look()
    return found
