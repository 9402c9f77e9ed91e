"""How long instances that have ended are kept, as operators configure it: forever by default."""

from collections.abc import Mapping
from typing import Final

import msgspec

from headwater.processors.runs.durations import milliseconds
from headwater.processors.runs.limits import WORKFLOW_NAME_MAX, name_problem

__all__ = ["KEEP_FOREVER", "Retention", "read_retention"]

_NEVER: Final = "never"
_EXPECTED: Final = (
    'expected durations separated by commas, such as "order=90 days, 1 day" or "order=never, 30 '
    'days": one per workflow, and one for all others, found {0!r}{1}'
)


class Retention(msgspec.Struct, frozen=True):
    """How long instances are kept once they have ended, in ms; None is forever."""

    of_workflow: Mapping[str, int | None] = {}
    of_others: int | None = None

    def until_ms(self, workflow: str, ended_at_ms: int) -> int | None:
        """Return when an instance may be deleted, in ms since the epoch; None for never."""
        kept_ms = self.of_workflow.get(workflow, self.of_others)
        return None if kept_ms is None else ended_at_ms + kept_ms


KEEP_FOREVER: Final = Retention()


def read_retention(text: str) -> Retention:
    """Parse an operator's text; an empty one keeps everything.

    Raises:
        ValueError: The text is invalid.
    """
    of_workflow: dict[str, int | None] = {}
    of_others: list[int | None] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, duration = part.rpartition("=")
        name = name.strip()
        problem = separator and name_problem("the name of a workflow", name, WORKFLOW_NAME_MAX)
        if problem:
            raise ValueError(_EXPECTED.format(text, f": {problem}"))
        if name in of_workflow or (not separator and of_others):
            detail = f", which has {name or 'all others'} twice"
            raise ValueError(_EXPECTED.format(text, detail))
        kept_ms = _read(duration.strip(), text)
        if separator:
            of_workflow[name] = kept_ms
        else:
            of_others.append(kept_ms)
    return Retention(of_workflow, of_others[0] if of_others else None)


def _read(duration: str, text: str) -> int | None:
    if duration == _NEVER:
        return None
    try:
        return milliseconds(duration)
    except ValueError as error:
        raise ValueError(_EXPECTED.format(text, f": {error}")) from None
