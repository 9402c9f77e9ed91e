"""Following what goes on by itself, in a gateway or a worker: looked at until it has ended."""

import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from headwater.gateway.commands.output import say

#: What is followed, as its route answers it.
Answer: TypeAlias = dict[str, Any]

#: Each look is a request.
_LOOK_EVERY_S: Final = 1.0


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
